// Instruction sets. Every kernel file is compiled once per set, with FUSECONV_ISA naming it; the host's processor picks
// one of them when the library is loaded.
//
// What such a file defines inline must be in a namespace, or be a template over a type, of its own set: the linker
// keeps one copy of a name, and a copy compiled for a newer processor must not be the one that an older processor runs.
#pragma once

#include <string_view>

// This file is also read by translation units of no particular set: bindings and shape arithmetic.
#ifndef FUSECONV_ISA
#define FUSECONV_ISA baseline
#endif

#if defined(__CUDACC__)
#define FUSECONV_INLINE __host__ __device__ __forceinline__
#else
#define FUSECONV_INLINE inline __attribute__((always_inline))
#endif

namespace fuseconv::isa {

struct baseline {
  static constexpr std::string_view name = "baseline";
};
struct x86_64_v3 {
  static constexpr std::string_view name = "x86-64-v3";
};
struct x86_64_v4 {
  static constexpr std::string_view name = "x86-64-v4";
};

// The best set of this processor, or the one that the environment variable FUSECONV_ISA names, if the processor has it.
// Throws when it does not.
std::string_view selected();

// The member of a family of kernels, one per set, to run here. `family` maps a set to a function pointer.
template <class Family>
auto select(Family family) {
#if defined(__x86_64__) && !defined(FUSECONV_BASELINE_ONLY)
  if (selected() == x86_64_v4::name) {
    return family(x86_64_v4{});
  }
  if (selected() == x86_64_v3::name) {
    return family(x86_64_v3{});
  }
#endif
  return family(baseline{});
}

}  // namespace fuseconv::isa
