// Runs a function object on the host's threads. Compiled once per instruction set.
#pragma once

#include <cstdint>

#include "core/host.h"
#include "core/isa.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// Calls body(begin, end) for pieces of [0, count) of at least `grain`, on the host's threads. It must not throw.
template <class Body>
void parallel(CpuHost& host, int64_t count, int64_t grain, const Body& body) {
  host.parallel_for(
      count, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<const Body*>(context))(begin, end); },
      const_cast<Body*>(&body));
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
