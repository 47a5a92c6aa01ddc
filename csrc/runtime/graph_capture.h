// Captures model calls in CUDA graphs. Translates fuseconv/runtime/graph_capture.py to C++.
// docs/adr/0007-cuda-graphs.md describes how graphs use memory, threads and streams.
#pragma once

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "graphed_call.h"

namespace fuseconv::runtime {

struct Graph {
  Shapes shapes;
  std::vector<at::Tensor> inputs;  // outside the memory that graphs share, because the padding must persist
  std::unique_ptr<at::cuda::CUDAGraph> captured;
  std::vector<at::Tensor> outputs;             // valid until the next launch of any graph
  std::vector<c10::cuda::CUDAStream> streams;  // the streams on which the allocator knows that the inputs are used
};

// Copies tensors[i] to places[i] for each i, with one kernel per dtype.
inline void copy(const std::vector<at::Tensor>& places, const std::vector<at::Tensor>& tensors) {
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> groups;
  for (size_t i = 0; i < places.size(); ++i) {
    auto& [to, from] = groups[places[i].scalar_type()];
    to.push_back(places[i]);
    from.push_back(tensors[i]);
  }
  for (const auto& [dtype, group] : groups) {
    at::_foreach_copy_(group.first, group.second);
  }
}

// Captures calls on the current device. All captures share one memory pool.
class Recorder {
 public:
  explicit Recorder(Call call) : call_(std::move(call)) {}

  // Creates a new pool for the next captures. A pool is released with its last graph.
  void renew() { pool_ = at::cuda::graph_pool_handle(); }

  // Returns the size of the pool in bytes. The pool must contain at least one graph.
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot(pool_).segments) {
      sum += static_cast<int64_t>(segment.total_size);
    }
    return sum;
  }

  // Captures a call with the graph's inputs, and sets the graph's outputs. Throws std::exception if the capture fails.
  void record(Graph& graph) {
    try {
      capture(graph);
    } catch (const std::exception&) {
      recover(graph);
      throw;
    }
  }

 private:
  void capture(Graph& graph) {
    static std::mutex capturing;  // torch allows one capture at a time in a process
    const std::lock_guard lock(capturing);
    const c10::cuda::CUDAStreamGuard on(stream_);
    // In this mode, other threads may meanwhile make CUDA calls that a capture forbids, such as allocating memory.
    graph.captured->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      graph.outputs = call_(graph.inputs);
    } catch (...) {
      try {
        graph.captured->capture_end();
      } catch (const std::exception&) {  // says only that the capture is no longer valid
      }
      throw;
    }
    graph.captured->capture_end();
  }

  void recover(Graph& graph) {
    graph.captured.release();  // torch's allocators may call the graph until the process ends
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    } catch (const std::exception&) {  // torch already did
    }
    // torch leaves its random number generator in the capture state, in which the generator rejects every later use.
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device_);
    generator.graphsafe_set_state(generator.clone());
  }

  const Call call_;
  const c10::DeviceIndex device_ = c10::cuda::current_device();
  const c10::cuda::CUDAStream stream_ = c10::cuda::getStreamFromPool(false, device_);  // used only for captures
  decltype(at::cuda::graph_pool_handle()) pool_ = at::cuda::graph_pool_handle();
};

}  // namespace fuseconv::runtime
