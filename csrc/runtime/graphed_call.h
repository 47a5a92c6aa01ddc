// Wraps a LibTorch call so that it is captured in CUDA graphs and replayed. Implemented by cuda_graphs.cpp, or by
// cuda_graphs_absent.cpp if LibTorch was built without CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

// A function that calls a loaded artifact. Its arguments and results are tensors on the artifact's device.
using Call = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

class GraphedCall {
 public:
  virtual ~GraphedCall() = default;
  // Computes the outputs on the current stream. Throws an Error of kind `upstream` if a capture is required but fails.
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;
  virtual CudaGraphs status() = 0;
};

// Wraps `call`, which must launch the same work for the same shapes. If `required` is true, every shape is captured at
// its first call, and a failed capture is an error. Otherwise a shape is captured once its graph pays off. `memory` is
// the maximum number of bytes that the graphs may hold; if `memory` is empty, the maximum is a tenth of the free GPU
// memory.
std::unique_ptr<GraphedCall> graphed(Call call, const Contract& contract, bool required, std::optional<int64_t> memory);

}  // namespace fuseconv::runtime
