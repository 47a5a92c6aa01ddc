// y = act(convolution(x, weight) + bias + residual), or act(convolution(x, weight) + bias) + residual.
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"

namespace fuseconv {

// x [N, C, ...], weight [O, C / groups, ...] or, transposed, [C, O / groups, ...], of any strides; the residual has the
// sizes of y.
struct Convolution {
  In x, weight;
  std::optional<In> bias, residual;
  ConvolutionParameters parameters;
  Activation activation;
  bool residual_first;  // added before the activation
  Out y;                // contiguous or channels last
};

inline namespace FUSECONV_ISA {

void convolution(CpuHost& host, const Convolution& convolution);

}  // namespace FUSECONV_ISA

namespace cuda {

void convolution(CudaHost& host, const Convolution& convolution);

}  // namespace cuda
}  // namespace fuseconv
