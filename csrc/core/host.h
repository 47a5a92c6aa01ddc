// What only the host framework can give. Each binding implements it: torch by its shims, ONNX Runtime by its own API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor_view.h"

namespace fuseconv {

// A convolution but for its tensors. Each span has a number per spatial dim.
struct ConvolutionParameters {
  std::span<const int64_t> stride, padding, dilation;
  bool transposed;
  std::span<const int64_t> output_padding;  // read only if transposed
  int64_t groups;
};

class Host {
 public:
  // y = x weight^T + bias by the host's own GEMM; x [..., K], weight [N, K] of any strides, y [..., N] contiguous.
  virtual void linear(In x, In weight, std::optional<In> bias, Out y) = 0;

  // y = scale * (a b^T) for each matrix of the leading dims, by the host's own GEMM; a [..., S, D] and b [..., T, D] of
  // any strides, their leading dims those of y, y [..., S, T] contiguous. The scale is applied before the rounding.
  virtual void batched_product(In a, In b, double scale, Out y) = 0;

  // The host's own convolution, a tensor [N, O, ...] of whatever strides that lives until the call's work is done. ONNX
  // Runtime's hosts have none: its graphs have Conv.
  virtual In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) = 0;

  // Memory that lives until the call's work is done, aligned to 64 bytes on the CPU and to 256 on CUDA.
  virtual void* scratch(size_t bytes) = 0;

 protected:
  ~Host() = default;
};

class CpuHost : public Host {
 public:
  using Body = void (*)(int64_t begin, int64_t end, void* context);

  // Runs body over [0, count) in pieces of at least `grain`, on the host's thread pool. The body does not throw.
  virtual void parallel_for(int64_t count, int64_t grain, Body body, void* context) = 0;
};

// In this namespace, so that argument-dependent lookup of `pointwise(host, ...)` and its like finds the kernels of
// CUDA.
namespace cuda {

class Host : public fuseconv::Host {
 public:
  // The stream that the call must use, a cudaStream_t of the current device.
  virtual void* stream() = 0;

  // Host::linear on another stream.
  virtual void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) = 0;
};

}  // namespace cuda
using CudaHost = cuda::Host;

}  // namespace fuseconv
