// Computes y = act(x weight^T + bias) + residual, or, if residual_first, y = act(x weight^T + bias + residual), or, for
// a gated layer, act(x gates^T + bias) (x ups^T + bias): one product and its epilogue.
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"
#include "core/linear_backend.h"

namespace fuseconv {

// x is [..., K]; weight is [N, K] with any strides, or, if gated, [2H, K] with the gates before the ups; y is
// contiguous.
struct LinearLayer {
  In x, weight;
  std::optional<In> bias, residual;
  Activation activation;
  bool gated;
  bool tf32;                               // whether f32 may be multiplied in TF32 (CUDA)
  std::optional<linear::Backend> backend;  // std::nullopt: the fastest (CUDA)
  Out y;
  bool residual_first = false;
};

inline namespace FUSECONV_ISA {

void linear_layer(CpuHost& host, const LinearLayer& layer);

}  // namespace FUSECONV_ISA

namespace cuda {

void linear_layer(CudaHost& host, const LinearLayer& layer);

}  // namespace cuda
}  // namespace fuseconv
