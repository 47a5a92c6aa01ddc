// Computes y = scale * x for dense tensors of two dtypes: for hosts whose GEMM supports fewer dtypes than the ops, and
// for ops whose intermediate results exceed the range of f16.
#pragma once

#include "core/host.h"
#include "core/tensor_view.h"

namespace fuseconv {

struct Convert {
  // x and y have the same number of elements. Each of them may have any of the four dtypes in which kernels compute.
  // Rounds once.
  template <class Isa>
  static void cpu(CpuHost& host, In x, double scale, Out y);
};

namespace cuda {

// Does the same with a scale of 1.
void convert(CudaHost& host, In x, Out y);

}  // namespace cuda

}  // namespace fuseconv
