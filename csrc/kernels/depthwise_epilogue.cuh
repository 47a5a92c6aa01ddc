// The epilogue of the depthwise kernels: it adds the residual, applies the activation and writes the result.
#pragma once

#include "core/coarse.cuh"
#include "core/cuda.cuh"
#include "kernels/run.cuh"

namespace fuseconv::cuda {

// Computes the epilogue of a thread's part of the result and writes this part. The sums must be complete; the bias is
// part of them. `each(visit)` calls `visit(offset, sums[i])` for the sums of which the result has a position, with
// their offset in the result.
template <class T, int kCount, int kPair, class Problem, class Each>
__device__ __forceinline__ void finish(const Problem& p, float (&sums)[kCount][kPair], const Each& each) {
  const auto add_residual = [&] {
    each([&](int64_t offset, float (&values)[kPair]) {
      float addend[kPair];
      widen_run(load_run<kPair>(static_cast<const T*>(p.residual) + offset), addend);
#pragma unroll
      for (int i = 0; i < kPair; ++i) {
        values[i] += addend[i];
      }
    });
  };
  if (p.residual != nullptr && p.residual_first) {
    add_residual();
  }
  dispatch(p.act.activation, [&](auto act) {
#pragma unroll
    for (int i = 0; i < kCount * kPair; ++i) {
      float& value = sums[i / kPair][i % kPair];
      value = value_of(act(FormulaType<T>(value)));
    }
  });
  if (p.residual != nullptr && !p.residual_first) {
    add_residual();
  }
  each([&](int64_t offset, const float (&values)[kPair]) {
    store_run(static_cast<T*>(p.y) + offset, narrow_run<T>(values));
  });
}

}  // namespace fuseconv::cuda
