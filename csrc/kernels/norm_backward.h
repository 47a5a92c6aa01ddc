// With n = (x - m) / sqrt(v + eps) as in kernels/norm.h, h = grad * weight, C columns, and the mean over columns:
//   grad_x = (h - mean(h) - n mean(h n)) / sqrt(v + eps) + grad_sum;   mean(h) for centered norms only
//   grad_weight[c] = sum over rows of grad n;   grad_bias[c] = sum over rows of grad
//
// Each row is read once; m and v are recomputed. Rows are added in a fixed order, so that the same call gives the same
// result, bit by bit.
#pragma once

#include <optional>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {

struct NormGradients {
  In grad;
  In x;
  std::optional<In> weight;
  std::optional<In> grad_sum;
  double eps;
  bool centred;
  Out grad_x;
  std::optional<Out> grad_weight;  // contiguous; the column sums, if the caller needs them
  std::optional<Out> grad_bias;
};

inline namespace FUSECONV_ISA {

void norm_backward(CpuHost& host, const NormGradients& norm);

}  // namespace FUSECONV_ISA

namespace cuda {

void norm_backward(CudaHost& host, const NormGradients& norm);

}  // namespace cuda
}  // namespace fuseconv
