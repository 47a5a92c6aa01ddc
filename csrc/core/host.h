// The functions that only the host framework, torch or ONNX Runtime, can provide. Each binding implements them: the
// torch bindings with torch's C shims, the ONNX Runtime bindings with ONNX Runtime's C API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor_view.h"

namespace fuseconv {

// The parameters of a convolution. Each span contains one number per spatial dim. `padding` is the number of zeros
// before the elements of a dim, and `padding_after` the number after them. A host's own convolution reads only
// `padding` and adds that number of zeros on both sides.
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

  // Computes y = scale * (a b^T) for each index of the leading dims, with the host's GEMM. a [..., S, D] and b [..., T,
  // D] have any strides and the leading dims of y; y [..., S, T] is contiguous. The scale is applied before rounding.
  virtual void batched_product(In a, In b, double scale, Out y) = 0;

  // Runs the host's convolution. Returns a tensor [N, O, ...] with any strides that lives until the call's work is
  // done. The ONNX Runtime hosts do not support it, because ONNX graphs use Conv.
  virtual In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) = 0;

  // Returns a scratch buffer of `bytes` bytes, aligned to 64 bytes on the CPU and to 256 bytes on CUDA. The buffer
  // lives until the call's work is done.
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

  // Does the same as Host::linear, but on the given stream, a cudaStream_t.
  virtual void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) = 0;
};

}  // namespace cuda
using CudaHost = cuda::Host;

}  // namespace fuseconv
