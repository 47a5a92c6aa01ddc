// Defines OpKernel::run. Only the translation units that compile the kernels of an op include this file; bindings need
// only the declaration in core/op.h.
#pragma once

#include "core/op.h"

namespace fuseconv {

template <class Op, class Target>
void OpKernel<Op, Target>::run(typename Target::Host& host, const typename Op::Args& args,
                               const std::array<Out, kResults<Op>>& results) {
  [&]<size_t... O>(std::index_sequence<O...>) {
    Op::template run<Target>(host, args, results[O]...);
  }(std::make_index_sequence<kResults<Op>>());
}

}  // namespace fuseconv
