// Computes y = act(convolution(x, weight) + bias + residual), or act(convolution(x, weight) + bias) + residual.
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"

namespace fuseconv {

// x is [N, C, ...]; weight is [O, C / groups, ...] or, if transposed, [C, O / groups, ...]. Both may have any strides.
// The residual has the sizes of y.
struct Convolution {
  In x, weight;
  std::optional<In> bias, residual;
  ConvolutionParameters parameters;
  Activation activation;
  bool residual_first;  // whether the residual is added before the activation
  bool tf32;            // whether f32 may be multiplied in TF32 (CUDA)
  Out y;                // contiguous or channels last
};

inline namespace FUSECONV_ISA {

void convolution(CpuHost& host, const Convolution& convolution);

}  // namespace FUSECONV_ISA

namespace cuda {

void convolution(CudaHost& host, const Convolution& convolution);

}  // namespace cuda
}  // namespace fuseconv
