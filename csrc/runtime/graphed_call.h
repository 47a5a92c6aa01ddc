// Wraps a LibTorch call so that it is captured in CUDA graphs and replayed. Implemented by cuda_graphs.cpp, or by
// cuda_graphs_absent.cpp if LibTorch was built without CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

// Calls a loaded artifact. The arguments and results are tensors on the artifact's device.
class Call {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  using Lock = std::unique_lock<std::recursive_mutex>;

  // If `take_turns` is true, the calls of all threads are made one after the other.
  Call(Function function, bool take_turns)
      : function_(std::move(function)), turn_(take_turns ? std::make_shared<std::recursive_mutex>() : nullptr) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    const Lock lock = turn();
    return function_(inputs);
  }

  // Returns the lock that calls hold. A thread that holds it may call. The lock is empty if calls run side by side.
  Lock turn() const { return turn_ ? Lock(*turn_) : Lock(); }

 private:
  Function function_;
  std::shared_ptr<std::recursive_mutex> turn_;
};

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
