#include "gemm/choices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <string_view>

#include "gemm/cublaslt.h"
#include "gemm/cuda_check.h"
#include "gemm/stopwatch.h"
#include "tuning/process.h"

namespace fuseconv::linear {
namespace {

constexpr int kRounds = 5;
constexpr size_t kMostKnown = 16384;  // problems that are kept; when the limit is reached, their choices are made again
constexpr float kMicrosecondsOfGraph = 400.0f;

bool capturing(const Problem& p) {
  cudaStreamCaptureStatus status;
  cuda_check(cudaStreamIsCapturing(static_cast<cudaStream_t>(p.stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

bool aligned(const Problem& p) {
  return std::ranges::all_of(std::initializer_list<const void*>{p.x, p.weight, p.bias, p.residual, p.y},
                             [](const void* data) { return alignment(data) == 16; });
}

// Returns a name for everything that a timing depends on except the rows of x and y. The name is the same in every
// process.
std::string family_of(const Problem& p, std::optional<Backend> only) {
  static constexpr std::array kElements = {"f32", "f64", "f16", "bf16"};
  std::string key = device_name();
  const auto add = [&](std::string_view name, auto... numbers) {
    key += name;
    ((key += ' ', key += std::to_string(numbers)), ...);
  };
  if (p.is_convolution()) {
    add("; cudnn", p.product_version);
    add("; conv_act ");
  } else {
    add("; cublas", cublaslt::version());
    add("; linear ");
  }
  add(kElements[static_cast<size_t>(p.element)]);
  add(" ");
  add(kActivationNames[static_cast<size_t>(p.activation)]);
  add(" n", p.n);
  add(" k", p.k);
  add(p.gated != 0 ? " gated" : "");
  add(p.bias != nullptr ? " bias" : "");
  add(p.residual == nullptr ? "" : p.residual_first != 0 ? " residual first" : " residual");
  add(p.tf32 != 0 ? " tf32" : "");
  add(p.weight_transposed != 0 ? " transposed" : "");
  add(aligned(p) ? "" : " unaligned");
  if (p.x_stride != p.k || p.weight_stride != (p.weight_transposed != 0 ? p.n : p.k) || p.y_stride != p.n) {
    add(" strides", p.x_stride, p.weight_stride, p.y_stride);
  }
  if (const Windows& w = p.windows; p.is_convolution()) {
    add(" x", w.channels, w.height, w.width);
    add(" kernel", w.kernel_height, w.kernel_width);
    add(" stride", w.stride_y, w.stride_x);
    add(" padding", w.top, w.left);
    add(" y", w.y_height, w.y_width);
    add(" dilation", w.dilation_y, w.dilation_x);
    add(w.groups > 1 ? " groups " + std::to_string(w.groups) : "");
  }
  if (only) {
    add(" only ");
    add(kBackends[static_cast<size_t>(*only)]);
  }
  return key;
}

// Owns a buffer that candidates need while they are timed. `data` is null if no candidate needs one, or if there is not
// enough device memory; candidates that need the buffer are then left out.
class Buffer {
 public:
  Buffer(const Problem& p, const std::vector<Choice>& choices, size_t (*bytes_of)(const Problem&, Choice)) {
    size_t bytes = 0;
    for (const Choice choice : choices) {
      bytes = std::max(bytes, bytes_of(p, choice));
    }
    if (bytes > 0 && cudaMalloc(&data, bytes) != cudaSuccess) {
      data = nullptr;
      cudaGetLastError();  // clears the error, which a later check would otherwise report
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }

  void* data = nullptr;
};

// Returns the problem with relu_checked set. This is right for stored tactics, because each of their algorithms was
// tested for NaN before it was timed.
Problem checked(const Problem& problem) {
  Problem p = problem;
  p.relu_checked = 1;
  return p;
}

// Returns the candidates, followed by the choice for each of `others` that can compute the problem. `others` are
// tactics that were timed at other sizes. cuBLAS proposes different algorithms at each size, and only an algorithm that
// was timed at all sizes can be compared with the others at every size.
std::vector<Choice> candidates_and(const std::vector<tuning::Tactic>& others, const Problem& p,
                                   std::optional<Backend> only) {
  std::vector<Choice> choices = candidates(p, only);
  std::set<std::string> names;
  for (const Choice choice : choices) {
    names.insert(name_of(p, choice));
  }
  for (const tuning::Tactic& other : others) {
    if (!names.contains(other.name)) {
      if (const std::optional<Choice> choice = named(p, other.name)) {
        choices.push_back(*choice);
      }
    }
  }
  return choices;
}

// Returns the choice for the first of the tactics that can compute the problem, or std::nullopt if none can.
std::optional<Choice> first_of(const std::vector<tuning::Tactic>& tactics, const Problem& p) {
  for (const tuning::Tactic& tactic : tactics) {
    if (const std::optional<Choice> choice = named(p, tactic.name)) {
      return choice;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only,
                                    const std::vector<tuning::Tactic>& others) {
  if (capturing(problem)) {
    throw std::runtime_error(
        "fuseconv::linear_act: cannot time backends while the stream is being captured; "
        "call once before the capture, or load a file of tactics");
  }
  const std::lock_guard alone(timing_mutex());
  cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(problem.stream)), "cudaStreamSynchronize");
  Problem p = checked(problem);
  const std::vector<Choice> choices = candidates_and(others, p, only);
  const Buffer scratch(p, choices, scratch_bytes), workspace(p, choices, workspace_bytes);
  Stopwatch watch;
  p.stream = watch.stream;
  if (p.scratch == nullptr) {
    p.scratch = scratch.data;
  }
  if (p.workspace == nullptr) {
    p.workspace = workspace.data;
  }

  struct Entry {
    Choice choice;
    cudaGraphExec_t graph;
    int repeats;
    std::vector<float> microseconds;
  };
  std::vector<Entry> entries;
  for (const Choice choice : choices) {
    try {
      if (p.activation == Activation::relu && choice.backend == Backend::cublaslt &&
          !cublaslt::keeps_nan(p, choice.variant)) {
        continue;
      }
      run(p, choice);
      cuda_check(cudaStreamSynchronize(watch.stream), "a candidate");
      const float once = watch.replay(watch.record([&] { run(p, choice); }, 4)) / 4;
      const int repeats = std::clamp(static_cast<int>(kMicrosecondsOfGraph / once), 4, 64);
      entries.push_back({choice, watch.record([&] { run(p, choice); }, repeats), repeats, {}});
    } catch (const std::runtime_error&) {
      // The candidate is left out, because cuBLAS and cuDNN propose some algorithms that then fail to run. A device
      // error is sticky, so this call reports it again and throws.
      cudaGetLastError();
      cuda_check(cudaStreamSynchronize(watch.stream), "a candidate");
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Entry& entry : entries) {
      entry.microseconds.push_back(watch.replay(entry.graph) / static_cast<float>(entry.repeats));
    }
  }
  std::vector<Timing> timings;
  for (Entry& entry : entries) {
    std::vector<float>& times = entry.microseconds;
    std::sort(times.begin(), times.end());
    const float median = times[kRounds / 2];
    timings.push_back({entry.choice, median, (times[kRounds * 3 / 4] - times[kRounds / 4]) / median});
  }
  std::stable_sort(timings.begin(), timings.end(),
                   [](const Timing& a, const Timing& b) { return a.microseconds < b.microseconds; });
  return timings;
}

Choices::Signature Choices::signature_of(const Problem& p, std::optional<Backend> only) {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  int64_t flags = (p.bias != nullptr ? 1 : 0) | (p.residual != nullptr ? 2 : 0) | (p.tf32 != 0 ? 4 : 0) |
                  (p.weight_transposed != 0 ? 8 : 0) | (p.gated != 0 ? 16 : 0) | (p.residual_first != 0 ? 32 : 0) |
                  (p.product != nullptr ? 64 : 0);
  // cuBLAS's proposals depend on alignment.
  for (const void* data : {p.x, p.weight, p.bias, p.residual, static_cast<const void*>(p.y)}) {
    flags = flags << 5 | alignment(data);
  }
  const Windows& w = p.windows;
  return {device,
          w.height,
          w.width,
          w.kernel_height,
          w.kernel_width,
          w.y_height,
          w.y_width,
          w.stride_y,
          w.stride_x,
          w.top,
          w.left,
          w.dilation_y,
          w.dilation_x,
          w.groups,
          static_cast<int64_t>(p.element),
          static_cast<int64_t>(p.activation),
          p.m,
          p.n,
          p.k,
          p.x_stride,
          p.weight_stride,
          p.y_stride,
          p.residual_stride,
          static_cast<int64_t>(p.workspace_bytes),
          flags,
          only ? static_cast<int64_t>(*only) : -1};
}

Choices::Known Choices::find(const Problem& problem, bool may_time, std::optional<Backend> only) {
  tuning::ProcessTactics& tactics = tuning::ProcessTactics::get();
  const int64_t version = tactics.version();
  const std::string family = family_of(problem, only);
  if (const auto choice = first_of(tactics.measured(family, problem.m), checked(problem))) {
    return {*choice, true, version};
  }
  if (may_time) {
    if (const std::vector<Timing> timings = time_candidates(problem, only, tactics.expected(family, problem.m));
        !timings.empty()) {
      std::vector<tuning::Tactic> measured;
      for (const Timing& timing : timings) {
        measured.push_back({name_of(checked(problem), timing.choice), timing.microseconds, timing.noise});
      }
      tactics.put(family, problem.m, std::move(measured));
      return {timings.front().choice, true, version};
    }
  }
  tuning::check_known(family, problem.m);
  Problem expected = checked(problem);
  expected.product = needs_no_engine(problem) ? nullptr : problem.product;
  if (const auto choice = first_of(tactics.expected(family, problem.m), expected)) {
    return {*choice, false, version};
  }
  if (const auto choice = untimed_choice(problem, only)) {
    return {*choice, false, version};
  }
  std::string reasons;
  for (size_t i = 0; i < kBackends.size(); ++i) {
    if (!only || *only == static_cast<Backend>(i)) {
      reasons.append(reasons.empty() ? "" : "; ").append(kBackends[i]).append(": ");
      reasons += refuses(static_cast<Backend>(i), problem);
    }
  }
  throw std::runtime_error("fuseconv::linear_act: no CUDA backend takes this problem: " + reasons);
}

Choice Choices::choose(const Problem& problem, bool may_time, std::optional<Backend> only) {
  const Signature signature = signature_of(problem, only);
  const int64_t version = tuning::ProcessTactics::get().version();
  {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(signature);
    if (known != known_.end() && (known->second.measured || (known->second.version == version && !may_time))) {
      return known->second.choice;
    }
  }
  const Known found = find(problem, may_time && !capturing(problem), only);
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kMostKnown) {
    known_.clear();
  }
  return known_.insert_or_assign(signature, found).first->second.choice;
}

Choices& Choices::of_process() {
  // Not destroyed, because CUDA may have shut down before a static destructor runs.
  static Choices* const choices = new Choices;
  return *choices;
}

}  // namespace fuseconv::linear
