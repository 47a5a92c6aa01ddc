// The functions that only the host framework can provide. Each binding implements them: torch by its shims, ONNX
// Runtime by its API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor_view.h"

namespace fuseconv {

// The parameters of a convolution. Each span has one number per spatial dim. `padding` is the number of zeros before
// the elements of a dim; a host's own convolution takes as many after them.
struct ConvolutionParameters {
  std::span<const int64_t> stride, padding, padding_after, dilation;
  bool transposed;
  std::span<const int64_t> output_padding;  // read only if transposed
  int64_t groups;
};

class Host {
 public:
  // y = x weight^T + bias by the host's GEMM. x is [..., K], weight [N, K] with any strides, y [..., N] contiguous.
  virtual void linear(In x, In weight, std::optional<In> bias, Out y) = 0;

  // y = scale * (a b^T) for each matrix of the leading dims, by the host's GEMM. a [..., S, D] and b [..., T, D] have
  // any strides and the leading dims of y; y [..., S, T] is contiguous. The scale is applied before rounding.
  virtual void batched_product(In a, In b, double scale, Out y) = 0;

  // The host's convolution: a tensor [N, O, ...] with any strides that lives until the work of the call is done. The
  // hosts of ONNX Runtime have none, because its graphs use Conv.
  virtual In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) = 0;

  // Memory that lives until the work of the call is done, aligned to 64 bytes on the CPU and to 256 on CUDA.
  virtual void* scratch(size_t bytes) = 0;

 protected:
  ~Host() = default;
};

class CpuHost : public Host {
 public:
  using Body = void (*)(int64_t begin, int64_t end, void* context);

  // Runs body over [0, count) in pieces of at least `grain` on the host's thread pool. The body must not throw.
  virtual void parallel_for(int64_t count, int64_t grain, Body body, void* context) = 0;
};

// In this namespace, so that argument-dependent lookup of `pointwise(host, ...)` and similar calls finds the CUDA
// kernels.
namespace cuda {

class Host : public fuseconv::Host {
 public:
  // The stream of the call, a cudaStream_t of the current device.
  virtual void* stream() = 0;

  // The same as Host::linear, on another stream.
  virtual void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) = 0;
};

}  // namespace cuda
using CudaHost = cuda::Host;

}  // namespace fuseconv
