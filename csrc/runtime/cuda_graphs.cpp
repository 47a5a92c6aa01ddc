// Captures LibTorch calls in CUDA graphs and replays them: fuseconv/runtime/graphed_runner.py in C++.
// docs/adr/0007-cuda-graphs.md describes memory, threads and streams; docs/adr/0018-graph-policy.md describes which
// shapes are captured.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <optional>

#include "fuseconv/error.h"
#include "graph_capture.h"
#include "graph_payoff.h"
#include "graphed_call.h"
#include "stopwatch.h"

namespace fuseconv::runtime {
namespace {

constexpr size_t kLimit = 64;
constexpr double kMemoryShare = 0.1;
constexpr int kWarmUps = 2;

// Returns the default of the maximum number of bytes that the graphs may hold: a share of the device's free memory.
int64_t default_memory() {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(kMemoryShare * static_cast<double>(free));
}

bool has_one_shape(const Contract& contract) {
  return std::all_of(contract.inputs.begin(), contract.inputs.end(), [](const TensorSpec& spec) {
    return std::all_of(spec.shape.begin(), spec.shape.end(), [](const Size& size) { return size.name.empty(); });
  });
}

std::string place(const std::vector<at::Tensor>& tensors) {
  std::string where;
  for (const at::Tensor& tensor : tensors) {
    where += (where.empty() ? "a call with " : ", ") + c10::str(tensor.sizes());
  }
  return where;
}

// A timed call whose duration is not yet known.
struct Timed {
  Shapes shapes;
  bool contended, replayed;
};

class Graphs final : public GraphedCall {
 public:
  Graphs(Call call, const Contract& contract, bool required, std::optional<int64_t> memory)
      : call_(std::move(call)),
        buckets_(contract.buckets),
        required_(required),
        limit_(memory ? *memory : default_memory()),
        recorder_(call_) {
    if (required) {
      policy_ = std::make_unique<AtFirstSight>(kLimit, limit_);
    } else {
      policy_ = std::make_unique<WhenItPays>(kLimit, limit_, has_one_shape(contract));
    }
    for (const TensorSpec& spec : contract.inputs) {
      batched_.push_back(buckets_ && !spec.shape.empty() && spec.shape[0].name == buckets_->dim);
    }
    for (const std::string& name : contract.outputs) {
      const auto known = buckets_ ? buckets_->outputs : std::vector<std::string>();
      gives_.push_back(std::find(known.begin(), known.end(), name) != known.end());
    }
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    if (policy_->rest.load(std::memory_order_relaxed) > 0) {
      policy_->rest.fetch_sub(1, std::memory_order_relaxed);
      return call_(inputs);
    }
    const Clock::time_point at = Clock::now();
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
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      if (is_capturing_ && !required_) {
        return call_(inputs);  // a capture takes longer than a direct call
      }
      lock.lock();
    }
    report();
    const bool contended = last_ && stream != *last_ && !free_.query();
    const Step step = policy_->step(shapes, contended);
    if (step == Step::replay) {
      return in_turn(stream, [&] { return replay(find(shapes), inputs, rows, stream); });
    }
    if (step == Step::timed_replay) {
      auto begun = watch_.begin(stream, at);
      auto outputs = in_turn(stream, [&] { return replay(find(shapes), inputs, rows, stream); });
      watch_.end(std::move(begun), {shapes, contended, true});
      return outputs;
    }
    if (step == Step::drop_all) {
      drop([](const Graph&) { return true; });
    } else if (step == Step::capture) {
      if (!failure_) {
        return in_turn(stream, [&] { return capture(shapes, inputs, rows, stream); });
      }
      if (required_) {
        throw *failure_;
      }
    }
    lock.unlock();
    if (step != Step::timed_direct) {
      return call_(inputs);
    }
    const Call::Lock turn = call_.turn();  // the time does not include the wait for other calls
    auto begun = watch_.begin(stream, Clock::now());
    std::vector<at::Tensor> outputs = call_(inputs);
    watch_.end(std::move(begun), {shapes, contended, false});
    return outputs;
  }

  CudaGraphs status() override {
    const std::lock_guard lock(mutex_);
    CudaGraphs status{{}, held(), failure_ ? std::string(failure_->what()) + " (" + failure_->where + ")" : ""};
    for (const Graph& graph : graphs_) {
      status.shapes.push_back(graph.shapes);
    }
    return status;
  }

 private:
  // Runs work that uses the graphs' memory, ordered on the device after the previous use of this memory, and records an
  // event after it. The stream itself orders uses on the same stream; the event orders uses on different streams.
  template <typename Work>
  std::vector<at::Tensor> in_turn(const c10::cuda::CUDAStream& stream, const Work& work) {
    if (last_ != stream) {
      free_.block(stream);
      last_ = stream;
    }
    std::vector<at::Tensor> outputs;
    try {
      outputs = work();
    } catch (...) {
      free_.record(stream);
      throw;
    }
    free_.record(stream);
    return outputs;
  }

  // Reports the durations of finished timed calls to the policy.
  void report() {
    while (const auto done = watch_.finished()) {
      const auto& [call, seconds] = *done;
      if (policy_->timed(call.shapes, call.contended, call.replayed, seconds)) {
        drop([&shapes = call.shapes](const Graph& graph) { return graph.shapes == shapes; });
      }
    }
  }

  // Replays a graph on these inputs and returns copies of the outputs. The padding rows of the graph's inputs keep the
  // values that earlier calls wrote. These values do not matter, because rows are independent.
  std::vector<at::Tensor> replay(Graph& graph, const std::vector<at::Tensor>& inputs, int64_t rows,
                                 const c10::cuda::CUDAStream& stream) {
    if (std::find(graph.streams.begin(), graph.streams.end(), stream) == graph.streams.end()) {
      for (const at::Tensor& input : graph.inputs) {
        input.record_stream(stream);
      }
      graph.streams.push_back(stream);
    }
    copy(own(graph.inputs, batched_, rows), inputs);
    graph.captured->replay();
    return copied(own(graph.outputs, gives_, rows));
  }

  // Copies inputs into the input buffers of a new graph. The padding of the buffers repeats the first row.
  void fill(const std::vector<at::Tensor>& places, const std::vector<at::Tensor>& inputs, int64_t rows) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool is_padded = batched_[i] && inputs[i].size(0) > 0;
      places[i].copy_(is_padded ? inputs[i].narrow(0, 0, 1).expand(places[i].sizes()) : inputs[i]);
    }
    if (rows > 0) {
      copy(own(places, batched_, rows), inputs);
    }
  }

  static std::vector<at::Tensor> own(std::vector<at::Tensor> tensors, const std::vector<bool>& is_padded,
                                     int64_t rows) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = is_padded[i] ? tensors[i].narrow(0, 0, rows) : tensors[i];
    }
    return tensors;
  }

  static std::vector<at::Tensor> copied(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) {
      copies.push_back(at::empty_like(tensor));
    }
    copy(copies, tensors);
    return copies;
  }

  Graph& find(const Shapes& shapes) {
    return *std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& graph) { return graph.shapes == shapes; });
  }

  // Makes a direct call, which also serves as the warm-up, and returns its outputs. Then captures the call for later
  // replays if the policy makes room for its graph.
  std::vector<at::Tensor> capture(const Shapes& shapes, const std::vector<at::Tensor>& inputs, int64_t rows,
                                  const c10::cuda::CUDAStream& stream) {
    Graph graph{shapes, {}, std::make_unique<at::cuda::CUDAGraph>(), {}, {stream}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      graph.inputs.push_back(at::empty(shapes[i], inputs[i].options()));
    }
    std::vector<at::Tensor> outputs;
    for (int i = 0; i < warm_ups_; ++i) {
      fill(graph.inputs, inputs, rows);  // again for each call, because a call may write the next state into its inputs
      outputs = call_(graph.inputs);
    }
    warm_ups_ = 1;
    std::map<const void*, int64_t> sizes;  // by address, because an output may be an input
    for (const auto* tensors : {&graph.inputs, &outputs}) {
      for (const at::Tensor& tensor : *tensors) {
        sizes[tensor.const_data_ptr()] = static_cast<int64_t>(tensor.nbytes());
      }
    }
    int64_t size = 0;
    for (const auto& one : sizes) {
      size += one.second;
    }
    outputs = copied(own(outputs, gives_, rows));  // outputs may be views of the graph's inputs
    if (const auto dropped = policy_->room(shapes, size)) {
      drop([&](const Graph& other) {
        return std::find(dropped->begin(), dropped->end(), other.shapes) != dropped->end();
      });
      record(std::move(graph), size);
    }
    return outputs;
  }

  void record(Graph graph, int64_t size) {
    const Clock::time_point at = Clock::now();
    is_capturing_ = true;
    try {
      recorder_.record(graph);
    } catch (const std::exception& error) {
      is_capturing_ = false;
      give_up(error.what(), graph.inputs);
      return;
    }
    is_capturing_ = false;
    const std::string where = place(graph.inputs);
    const Shapes shapes = graph.shapes;
    graphs_.push_back(std::move(graph));
    const int64_t bytes = held();
    if (policy_->captured(shapes, size, bytes, seconds_since(at))) {
      return;
    }
    const bool is_alone = graphs_.size() == 1;
    drop([](const Graph&) { return true; });  // torch frees a pool only as a whole
    if (is_alone && required_) {
      throw Error(Kind::upstream,
                  "the CUDA graph of the call holds " + std::to_string(bytes) + " bytes, but the limit is " +
                      std::to_string(limit_),
                  where, "raise cuda_graphs_memory, or load with cuda_graphs automatic or off");
    }
  }

  // Returns the bytes that the graphs hold: the input buffers, and the pool with outputs and intermediate values.
  int64_t held() const {
    int64_t sum = graphs_.empty() ? 0 : recorder_.bytes();
    for (const Graph& graph : graphs_) {
      for (const at::Tensor& input : graph.inputs) {
        sum += static_cast<int64_t>(input.nbytes());
      }
    }
    return sum;
  }

  // Drops the graphs for which `chosen` returns true, after the last use of the graphs' memory.
  template <typename Chosen>
  void drop(const Chosen& chosen) {
    if (std::none_of(graphs_.begin(), graphs_.end(), chosen)) {
      return;
    }
    free_.synchronize();
    graphs_.remove_if(chosen);
    if (graphs_.empty()) {
      recorder_.renew();
    }
  }

  // Stops all captures after one has failed: an op that a graph cannot contain fails for every shape, and memory that
  // was insufficient remains so. Throws the error if captures are required.
  void give_up(const std::string& why, const std::vector<at::Tensor>& inputs) {
    failure_.emplace(Kind::upstream, "the model cannot be captured in a CUDA graph: " + why, place(inputs),
                     "load with cuda_graphs automatic or off");
    if (required_) {
      throw *failure_;
    }
    if (graphs_.empty()) {
      policy_->rest = std::numeric_limits<int64_t>::max();
    }
  }

  const Call call_;
  const std::optional<Buckets> buckets_;
  const bool required_;
  const int64_t limit_;  // the maximum number of bytes that the graphs may hold
  std::vector<bool> batched_, gives_;
  const c10::DeviceIndex device_ = c10::cuda::current_device();
  Recorder recorder_;
  std::unique_ptr<GraphPolicy> policy_;
  Stopwatch<Timed> watch_;
  c10::Event free_{c10::DeviceType::CUDA};     // recorded when the memory of the graphs becomes free
  std::optional<c10::cuda::CUDAStream> last_;  // the stream of the last use of that memory
  std::mutex mutex_;
  std::atomic<bool> is_capturing_ = false;
  int warm_ups_ = kWarmUps;  // lazy loading, timing and compilation must not be captured
  std::list<Graph> graphs_;  // in the order of capture
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<GraphedCall> graphed(Call call, const Contract& contract, bool required,
                                     std::optional<int64_t> memory) {
  return std::make_unique<Graphs>(std::move(call), contract, required, memory);
}

}  // namespace fuseconv::runtime
