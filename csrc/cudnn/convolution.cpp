#include "cudnn/convolution.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/layout.h"
#include "cudnn/convolution_graph.h"
#include "gemm/ends_are_nan.h"
#include "gemm/stopwatch.h"
#include "tuning/process.h"

namespace fuseconv::cudnn {
struct Plan {
  Descriptor descriptor;
  std::string name;
  int64_t workspace;
  std::mutex mutex;

  Plan(Handle handle, const Descriptor& configuration) : descriptor(kExecutionPlan), name(name_of(configuration)) {
    descriptor.set(kPlanHandle, kTypeHandle, handle).set(kPlanConfig, configuration).finalize();
    descriptor.get(kPlanWorkspace, kTypeInt64, &workspace, 1);
  }

  // Only one thread runs a plan at a time, because a plan may contain the state of its execution, even if each thread
  // uses its own handle.
  void run(Handle handle, void* stream, const Problem& p, void* workspace_data) {
    std::vector<int64_t> ids{kX, kWeight, kY};
    std::vector<const void*> pointers{p.x.data, p.weight.data, p.y.data};
    if (p.bias) {
      ids.push_back(kBias);
      pointers.push_back(p.bias->data);
    }
    if (p.residual) {
      ids.push_back(kResidual);
      pointers.push_back(p.residual->data);
    }
    Descriptor pack(kVariantPack);
    pack.set(kPackPointers, kTypePointer, pointers.data(), pointers.size())
        .set(kPackIds, ids)
        .set(kPackWorkspace, kTypePointer, workspace_data)
        .finalize();
    const std::lock_guard lock(mutex);
    check(functions()->set_stream(handle, stream), "cudnnSetStream");
    check(functions()->execute(handle, descriptor.get(), pack.get()), "execute");
  }
};

namespace {

// The maximum number of engines that are timed, in the order of cuDNN's heuristic. For every convolution that was
// tried, the fastest engine was among the first ones.
constexpr size_t kTimed = 8;
constexpr int64_t kLargestWorkspace = int64_t{256} << 20;
constexpr int kRounds = 5;
constexpr int kRepeats = 8;          // launches in a graph
constexpr size_t kMostPlans = 1024;  // plans that are kept; when the limit is reached, they are created anew

using Key = std::vector<int64_t>;

Key key_of(const Problem& p) {
  int device;
  linear::cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  Key key{
      device, static_cast<int64_t>(p.x.dtype), p.relu, p.bias.has_value(), p.residual.has_value(), p.parameters.groups};
  for (const In& tensor : {p.x, p.weight}) {
    key.insert(key.end(), tensor.sizes, tensor.sizes + tensor.rank);
  }
  for (const auto& numbers :
       {p.parameters.stride, p.parameters.padding, p.parameters.padding_after, p.parameters.dilation}) {
    key.insert(key.end(), numbers.begin(), numbers.end());
  }
  return key;
}

// Returns a name for everything that a timing depends on except the number of images.
std::string family_of(const Problem& p) {
  std::ostringstream family;
  family.imbue(std::locale::classic());  // the name must be the same in every process
  family << linear::device_name() << "; cudnn " << functions()->version() << "; conv "
         << (p.x.dtype == Dtype::f16 ? "f16" : "bf16") << (p.relu ? " relu keeping NaN" : "") << (p.bias ? " bias" : "")
         << (p.residual ? " residual" : "");
  const auto add = [&](const char* name, std::span<const int64_t> numbers) {
    family << ' ' << name;
    for (size_t i = 0; i < numbers.size(); ++i) {
      family << (i == 0 ? ' ' : 'x') << numbers[i];
    }
  };
  add("x", std::span(p.x.sizes + 1, static_cast<size_t>(p.x.rank - 1)));
  add("weight", std::span(p.weight.sizes, static_cast<size_t>(p.weight.rank)));
  add("stride", p.parameters.stride);
  add("padding", p.parameters.padding);
  if (!std::ranges::equal(p.parameters.padding, p.parameters.padding_after)) {
    add("and", p.parameters.padding_after);
  }
  add("dilation", p.parameters.dilation);
  family << " groups " << p.parameters.groups;
  return family.str();
}

// Returns the plan of a configuration, or null if cuDNN proposed the configuration for the operations but does not
// support it for these sizes.
std::shared_ptr<Plan> plan_of(Handle handle, const Descriptor& configuration) {
  try {
    auto plan = std::make_shared<Plan>(handle, configuration);
    return plan->workspace <= kLargestWorkspace ? plan : nullptr;
  } catch (const Refused&) {
    return nullptr;
  }
}

struct Timed {
  std::shared_ptr<Plan> plan;
  tuning::Tactic tactic;
};

// Returns whether the ReLU of a plan propagates NaN, which cuDNN does not promise: some of its engines return 0. `nan`
// is a weight whose elements are NaN. The plan runs with this weight, and overwrites y.
bool keeps_nan(Plan& plan, Handle handle, cudaStream_t stream, Problem p, const void* nan, void* workspace) {
  p.weight.data = nan;
  plan.run(handle, stream, p, workspace);
  const int64_t channels = p.y.sizes[1];
  return linear::ends_are_nan(p.y.data, p.y.dtype, channels, element_count(p.y) - channels, stream);
}

// Times the plans of the first kTimed configurations that cuDNN supports, and returns the timings, fastest first.
// Leaves out plans that fail to run, and plans with a ReLU that does not propagate NaN.
std::vector<Timed> timed(CudaHost& host, Handle handle, const Problem& p, const Graph& graph) {
  std::vector<std::shared_ptr<Plan>> plans;
  int64_t bytes = 0;
  for (const Descriptor& configuration : graph.configurations()) {
    if (const auto plan = plans.size() < kTimed ? plan_of(handle, configuration) : nullptr) {
      plans.push_back(plan);
      bytes = std::max(bytes, plan->workspace);
    }
  }
  if (plans.empty()) {
    return {};
  }
  void* const workspace = bytes > 0 ? host.scratch(static_cast<size_t>(bytes)) : nullptr;
  const size_t weight_bytes = static_cast<size_t>(element_count(p.weight) * size_of(p.weight.dtype));
  void* const nan = p.relu ? host.scratch(weight_bytes) : nullptr;
  const std::lock_guard alone(linear::timing_mutex());
  linear::cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(host.stream())), "cudaStreamSynchronize");
  linear::Stopwatch watch;
  if (p.relu) {  // every 16-bit element of ones is NaN
    linear::cuda_check(cudaMemsetAsync(nan, 0xff, weight_bytes, watch.stream), "cudaMemsetAsync");
  }
  std::vector<Timed> found;
  for (const auto& plan : plans) {
    try {
      const auto run = [&] { plan->run(handle, watch.stream, p, workspace); };
      run();
      linear::cuda_check(cudaStreamSynchronize(watch.stream), "an engine");
      if (p.relu && !keeps_nan(*plan, handle, watch.stream, p, nan, workspace)) {
        continue;
      }
      const cudaGraphExec_t replayed = watch.record(run, kRepeats);
      float times[kRounds];
      for (float& time : times) {
        time = watch.replay(replayed) / kRepeats;
      }
      std::sort(times, times + kRounds);
      found.push_back({plan, {plan->name, times[0], (times[kRounds / 2] - times[0]) / times[0]}});
    } catch (const std::runtime_error&) {
      cudaGetLastError();  // an engine that cannot be captured leaves one; an error that stays is thrown by the next
                           // line
      linear::cuda_check(cudaStreamSynchronize(watch.stream), "an engine");
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Timed& a, const Timed& b) { return a.tactic.microseconds < b.tactic.microseconds; });
  return found;
}

// Returns the plan of the first of these tactics that cuDNN proposes for the problem, or null if it proposes none of
// them.
std::shared_ptr<Plan> first_of(const std::vector<tuning::Tactic>& tactics, Handle handle, const Graph& graph) {
  std::vector<std::string> names;  // computing a name takes dozens of cuDNN calls
  for (const Descriptor& configuration : graph.configurations()) {
    names.push_back(tactics.empty() ? "" : name_of(configuration));
  }
  for (const tuning::Tactic& tactic : tactics) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == tactic.name) {
        if (auto plan = plan_of(handle, graph.configurations()[i])) {
          return plan;
        }
      }
    }
  }
  return nullptr;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status;
  linear::cuda_check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

// What is known about a problem. A null plan means that cuDNN does not support the problem.
struct Known {
  std::shared_ptr<Plan> plan;
  bool measured;
  int64_t version = 0;  // the version of the tactics by which the plan was chosen
};

// The plans by problem, shared by all threads.
class Plans {
 public:
  std::optional<Known> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }

  void keep(const Key& key, Known known) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kMostPlans) {
      known_.clear();
    }
    known_.insert_or_assign(key, std::move(known));
  }

 private:
  std::mutex mutex_;
  std::map<Key, Known> known_;
};

// Not destroyed, because CUDA may have shut down before a static destructor runs.
Plans& plans() {
  static Plans& plans = *new Plans;
  return plans;
}

// Selects a plan as linear::Choices::choose selects a backend. The result is the first of these that exists: the
// fastest measured plan; the fastest plan of a new timing, if `times`; the plan that is expected to be fastest from
// measured tactics; the first plan that cuDNN proposes, except with a ReLU, because only timed plans are known to
// propagate NaN. If there is none, the plan of the result is null.
Known search(CudaHost& host, Handle handle, const Problem& p, bool times, int64_t version) {
  try {
    const Graph graph(handle, p);
    tuning::ProcessTactics& tactics = tuning::ProcessTactics::get();
    const std::string family = family_of(p);
    if (const auto plan = first_of(tactics.measured(family, p.x.sizes[0]), handle, graph)) {
      return {plan, true, version};
    }
    if (times) {
      const std::vector<Timed> found = timed(host, handle, p, graph);
      std::vector<tuning::Tactic> measured;
      for (const Timed& one : found) {
        measured.push_back(one.tactic);
      }
      tactics.put(family, p.x.sizes[0], std::move(measured));
      return {found.empty() ? nullptr : found.front().plan, true, version};
    }
    if (!p.relu) {  // without a known plan, the convolution runs without its ReLU, which is a problem of its own
      tuning::check_known(family, p.x.sizes[0]);
    }
    if (const auto plan = first_of(tactics.expected(family, p.x.sizes[0]), handle, graph)) {
      return {plan, false, version};
    }
    if (p.relu) {
      return {nullptr, false, version};
    }
    for (const Descriptor& configuration : graph.configurations()) {
      if (const auto plan = plan_of(handle, configuration)) {
        return {plan, false, version};
      }
    }
  } catch (const Refused&) {
    // cuDNN does not support these operations together.
  }
  return {nullptr, true, version};
}

// Returns the plan for a problem, or null if cuDNN does not support the problem. Holds no lock during the search,
// because timing waits for the work on the stream, which may wait for another thread's work.
std::shared_ptr<Plan> plan_for(CudaHost& host, Handle handle, const Problem& p, const Key& key, bool may_time) {
  const std::optional<Known> found = plans().find(key);
  const int64_t version = tuning::ProcessTactics::get().version();
  const bool times = may_time && !is_capturing(host.stream());
  if (found && (found->measured || (found->version == version && !times))) {
    return found->plan;
  }
  const Known made = search(host, handle, p, times, version);
  plans().keep(key, made);
  return made.plan;
}

// While the object exists, cuDNN may allocate memory even if another stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

int64_t version() { return functions() == nullptr ? 0 : static_cast<int64_t>(functions()->version()); }

std::optional<Call> prepare(CudaHost& host, const Problem& problem, bool may_time) {
  if (functions() == nullptr) {
    return std::nullopt;
  }
  const RelaxedCapture relaxed;
  const Key key = key_of(problem);
  try {
    std::shared_ptr<Plan> plan = plan_for(host, handle_of_thread(), problem, key, may_time);
    if (plan == nullptr) {
      return std::nullopt;
    }
    void* const workspace = plan->workspace > 0 ? host.scratch(static_cast<size_t>(plan->workspace)) : nullptr;
    return Call{problem, std::move(plan), workspace};
  } catch (const Refused&) {
    plans().keep(key, {nullptr, true});  // cuDNN refuses a handle
    return std::nullopt;
  }
}

void run(const Call& call, void* stream) {
  const RelaxedCapture relaxed;
  try {
    call.plan->run(handle_of_thread(), stream, call.problem, call.workspace);
  } catch (const Refused&) {
    plans().keep(key_of(call.problem), {nullptr, true});
    throw;
  }
}

}  // namespace fuseconv::cudnn
