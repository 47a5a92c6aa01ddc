// CUDA graphs around a call of LibTorch: fuseconv/runtime/cuda_graphs.py in C++. docs/adr/0007-cuda-graphs.md describes
// memory, threads and streams.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>

#include "fuseconv/error.h"
#include "graphed_call.h"

namespace fuseconv::runtime {
namespace {

constexpr size_t kLimit = 16;
constexpr int kWarmUps = 2;

// torch allows one capture at a time in a process.
std::mutex capturing;

struct Graph {
  Shapes shapes;
  std::vector<at::Tensor> inputs;  // not in the memory that graphs share, because padding must persist
  c10::cuda::CUDAStream stream;    // the stream on which their memory is allocated
  std::unique_ptr<at::cuda::CUDAGraph> captured;
  std::vector<at::Tensor> outputs;  // until the next launch of any graph
};

class Graphs final : public GraphedCall {
 public:
  Graphs(Call call, const Contract& contract, bool required)
      : call_(std::move(call)), buckets_(contract.buckets), required_(required) {
    for (const TensorSpec& spec : contract.inputs) {
      batched_.push_back(buckets_ && !spec.shape.empty() && spec.shape[0].name == buckets_->dim);
    }
    for (const std::string& name : contract.outputs) {
      const auto known = buckets_ ? buckets_->outputs : std::vector<std::string>();
      gives_.push_back(std::find(known.begin(), known.end(), name) != known.end());
    }
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    const c10::cuda::CUDAGuard device(device_);
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
      return call_(inputs);
    }
    int64_t rows = 0;
    Shapes shapes;
    for (size_t i = 0; i < inputs.size(); ++i) {
      shapes.push_back(inputs[i].sizes().vec());
      if (batched_[i]) {
        rows = shapes[i][0];
        shapes[i][0] = buckets_->rounded(rows);
      }
    }
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    std::unique_lock lock(mutex_);
    free_.block(stream);
    std::optional<std::vector<at::Tensor>> outputs;
    try {
      if (const Graph* graph = find(shapes, inputs, stream)) {
        outputs = replay(*graph, inputs, rows, stream);
      }
    } catch (...) {
      free_.record(stream);
      throw;
    }
    free_.record(stream);
    lock.unlock();
    return outputs ? *std::move(outputs) : call_(inputs);
  }

  CudaGraphs status() override {
    const std::lock_guard lock(mutex_);
    CudaGraphs status{{}, 0, failure_ ? std::string(failure_->what()) + " (" + failure_->where + ")" : ""};
    for (const Graph& graph : graphs_) {
      status.shapes.push_back(graph.shapes);
      for (const at::Tensor& input : graph.inputs) {
        status.memory += static_cast<int64_t>(input.nbytes());
      }
    }
    if (!graphs_.empty()) {
      for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot(pool_).segments) {
        status.memory += static_cast<int64_t>(segment.total_size);
      }
    }
    return status;
  }

 private:
  // Padding is left as earlier calls wrote it. Rows are independent, so its values do not matter.
  std::vector<at::Tensor> replay(const Graph& graph, const std::vector<at::Tensor>& inputs, int64_t rows,
                                 const c10::cuda::CUDAStream& stream) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (stream != graph.stream) {
        graph.inputs[i].record_stream(stream);
      }
      own(graph.inputs[i], batched_[i], rows).copy_(inputs[i]);
    }
    graph.captured->replay();
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      outputs.push_back(own(graph.outputs[i], gives_[i], rows).clone());
    }
    return outputs;
  }

  static at::Tensor own(const at::Tensor& tensor, bool is_padded, int64_t rows) {
    return is_padded ? tensor.narrow(0, 0, rows) : tensor;
  }

  // The graph of a shape, captured if it is new. Null if that is not possible.
  const Graph* find(const Shapes& shapes, const std::vector<at::Tensor>& inputs, const c10::cuda::CUDAStream& stream) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& g) { return g.shapes == shapes; });
    if (found != graphs_.end()) {
      graphs_.splice(graphs_.end(), graphs_, found);
      return &graphs_.back();
    }
    if (!failure_ && capture(shapes, inputs, stream)) {
      if (graphs_.size() > kLimit) {  // after the capture: a pool without a graph is released
        free_.synchronize();
        graphs_.pop_front();
      }
      return &graphs_.back();
    }
    if (required_) {
      throw *failure_;
    }
    return nullptr;
  }

  bool capture(const Shapes& shapes, const std::vector<at::Tensor>& inputs, const c10::cuda::CUDAStream& stream) {
    Graph graph{shapes, {}, stream, std::make_unique<at::cuda::CUDAGraph>(), {}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      at::Tensor place = at::empty(shapes[i], inputs[i].options());
      place.copy_(batched_[i] && inputs[i].size(0) > 0 ? inputs[i].narrow(0, 0, 1).expand(shapes[i]) : inputs[i]);
      graph.inputs.push_back(place);
    }
    for (int i = 0; i < kWarmUps; ++i) {
      call_(graph.inputs);
    }
    try {
      record(graph);
    } catch (const std::exception& error) {
      give_up(graph, error.what(), inputs);
      return false;
    }
    graphs_.push_back(std::move(graph));
    return true;
  }

  void record(Graph& graph) {
    const std::lock_guard lock(capturing);
    const c10::cuda::CUDAStreamGuard on(stream_);
    // Other threads may meanwhile do what is not allowed during a capture, such as allocating memory.
    graph.captured->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      graph.outputs = call_(graph.inputs);
    } catch (...) {
      try {
        graph.captured->capture_end();
      } catch (const std::exception&) {  // it says only that the capture is no longer valid
      }
      throw;
    }
    graph.captured->capture_end();
  }

  // Stops all captures: an op that a graph cannot contain fails for every shape, and memory that is short stays short.
  void give_up(Graph& graph, const std::string& why, const std::vector<at::Tensor>& inputs) {
    graph.captured.release();  // torch's allocators may call it until the process ends
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    } catch (const std::exception&) {  // torch already did
    }
    // torch leaves its generator in the capture state and would reject every later random number.
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device_);
    generator.graphsafe_set_state(generator.clone());
    std::string where;
    for (const at::Tensor& input : inputs) {
      where += (where.empty() ? "a call with " : ", ") + c10::str(input.sizes());
    }
    failure_.emplace(Kind::upstream, "the model cannot be captured in a CUDA graph: " + why, where,
                     "load with cuda_graphs automatic or off");
  }

  const Call call_;
  const std::optional<Buckets> buckets_;
  const bool required_;
  std::vector<bool> batched_, gives_;
  const c10::DeviceIndex device_ = c10::cuda::current_device();
  const c10::cuda::CUDAStream stream_ = c10::cuda::getStreamFromPool(false, device_);  // of captures alone
  const decltype(at::cuda::graph_pool_handle()) pool_ = at::cuda::graph_pool_handle();
  c10::Event free_{c10::DeviceType::CUDA};  // that of the memory of the graphs
  std::mutex mutex_;
  std::list<Graph> graphs_;  // least recently used first
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<GraphedCall> graphed(Call call, const Contract& contract, bool required) {
  return std::make_unique<Graphs>(std::move(call), contract, required);
}

}  // namespace fuseconv::runtime
