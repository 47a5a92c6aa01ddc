// What only the host framework can give. Each binding implements it: torch by its shims, ONNX Runtime by its own API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/tensor_view.h"

namespace fuseconv {

class Host {
 public:
  // y = x weight^T + bias by the host's own GEMM; x [..., K], weight [N, K] of any strides, y [..., N] contiguous.
  virtual void linear(In x, In weight, std::optional<In> bias, Out y) = 0;

 protected:
  ~Host() = default;
};

class CpuHost : public Host {
 public:
  using Body = void (*)(int64_t begin, int64_t end, void* context);

  // Runs body over [0, count) in pieces of at least `grain`, on the host's thread pool. The body does not throw.
  virtual void parallel_for(int64_t count, int64_t grain, Body body, void* context) = 0;
};

class CudaHost : public Host {
 public:
  // The stream that the call must use, a cudaStream_t of the current device.
  virtual void* stream() = 0;

  // Device memory that lives until the call's work is done; 256-byte aligned.
  virtual void* scratch(size_t bytes) = 0;
};

}  // namespace fuseconv
