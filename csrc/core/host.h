// The functions that only the host framework can provide. Each binding implements them: torch's with its shims, ONNX
// Runtime's with its API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor_view.h"

namespace fuseconv {

// The parameters of a convolution. Each span contains one number per spatial dim. `padding` is the number of zeros
// before the elements of a dim. A host's own convolution adds the same number after them.
struct ConvolutionParameters {
  std::span<const int64_t> stride, padding, padding_after, dilation;
  bool transposed;
  std::span<const int64_t> output_padding;  // read only if transposed
  int64_t groups;
};

class Host {
 public:
  // Computes y = x weight^T + bias with the host's GEMM. x is [..., K], weight is [N, K] with any strides, and y is
  // [..., N] and contiguous.
  virtual void linear(In x, In weight, std::optional<In> bias, Out y) = 0;

  // Computes y = scale * (a b^T) for each matrix of the leading dims, with the host's GEMM. a [..., S, D] and b [...,
  // T, D] have any strides and the leading dims of y; y [..., S, T] is contiguous. The scale is applied before
  // rounding.
  virtual void batched_product(In a, In b, double scale, Out y) = 0;

  // Runs the host's convolution. Returns a tensor [N, O, ...] with any strides that lives until the call's work is
  // done. The ONNX Runtime hosts implement none, because ONNX graphs use Conv.
  virtual In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) = 0;

  // Returns memory that lives until the call's work is done, aligned to 64 bytes on the CPU and to 256 on CUDA.
  virtual void* scratch(size_t bytes) = 0;

 protected:
  ~Host() = default;
};

class CpuHost : public Host {
 public:
  using Body = void (*)(int64_t begin, int64_t end, void* context);

  // Runs the body over [0, count) in pieces of at least `grain` on the host's thread pool. The body must not throw.
  virtual void parallel_for(int64_t count, int64_t grain, Body body, void* context) = 0;
};

// Host is in this namespace so that argument-dependent lookup of `pointwise(host, ...)` and similar calls finds the
// CUDA kernels.
namespace cuda {

class Host : public fuseconv::Host {
 public:
  // Returns the stream of the call, a cudaStream_t of the current device.
  virtual void* stream() = 0;

  // The same as Host::linear, on another stream.
  virtual void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) = 0;
};

}  // namespace cuda
using CudaHost = cuda::Host;

}  // namespace fuseconv
