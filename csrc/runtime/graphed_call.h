// A call of LibTorch replayed from CUDA graphs. cuda_graphs.cpp has it, or cuda_graphs_absent.cpp where LibTorch has no
// CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

// A loaded artifact: tensors on its device in, tensors there out.
using Call = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

class GraphedCall {
 public:
  virtual ~GraphedCall() = default;
  // Computes the outputs on the current stream. Throws Error of kind upstream when the shape cannot be captured and is
  // required to be.
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;
  virtual CudaGraphs status() = 0;
};

// `call` launches the same work for the same shapes. With `required`, a capture that fails is an error.
std::unique_ptr<GraphedCall> graphed(Call call, const Contract& contract, bool required);

}  // namespace fuseconv::runtime
