#include "gemm/choices.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "gemm/cublaslt.h"
#include "gemm/cuda_check.h"
#include "gemm/stopwatch.h"

namespace fuseconv::linear {
namespace {

// The second word changes whenever the meaning of variants changes.
constexpr const char* kHeader = "fuseconv-linear-choices 1";
constexpr int kRounds = 5;
constexpr float kMicrosecondsOfGraph = 400.0f;

bool capturing(const Problem& p) {
  cudaStreamCaptureStatus status;
  cuda_check(cudaStreamIsCapturing(static_cast<cudaStream_t>(p.stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::string device_name() {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  static std::mutex mutex;
  static std::map<int, std::string> names;
  const std::lock_guard lock(mutex);
  std::string& name = names[device];
  if (name.empty()) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    name = properties.name;
  }
  return name;
}

bool aligned(const Problem& p) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.weight) |
                              reinterpret_cast<uintptr_t>(p.bias) | reinterpret_cast<uintptr_t>(p.residual) |
                              reinterpret_cast<uintptr_t>(p.y);
  return addresses % 16 == 0;
}

std::string key_of(const Problem& p, std::optional<Backend> only) {
  static constexpr std::array kElements = {"f32", "f64", "f16", "bf16"};
  std::ostringstream key;
  key << device_name() << "; cublas " << cublaslt::version() << "; " << kElements[static_cast<size_t>(p.element)] << ' '
      << kActivationNames[static_cast<size_t>(p.activation)] << ' ' << p.m << ' ' << p.n << ' ' << p.k;
  key << (p.gated != 0 ? " gated" : "") << (p.bias != nullptr ? " bias" : "")
      << (p.residual != nullptr ? " residual" : "");
  key << (p.tf32 != 0 ? " tf32" : "");
  key << (p.weight_transposed != 0 ? " transposed" : "") << (aligned(p) ? "" : " unaligned");
  if (p.x_stride != p.k || p.weight_stride != (p.weight_transposed != 0 ? p.n : p.k) || p.y_stride != p.n) {
    key << " strides " << p.x_stride << ' ' << p.weight_stride << ' ' << p.y_stride;
  }
  if (only) {
    key << " only " << kBackends[static_cast<size_t>(*only)];
  }
  return key.str();
}

// Device memory for candidates while they are timed. Null if there is not enough; those candidates are then left out.
class Scratch {
 public:
  Scratch(const Problem& p, std::optional<Backend> only) {
    size_t bytes = 0;
    for (const Choice choice : candidates(p, only)) {
      bytes = std::max(bytes, scratch_bytes(p, choice));
    }
    if (bytes > 0 && cudaMalloc(&data, bytes) != cudaSuccess) {
      data = nullptr;
      cudaGetLastError();  // otherwise a later check would report it
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { cudaFree(data); }

  void* data = nullptr;
};

}  // namespace

std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only) {
  if (capturing(problem)) {
    throw std::runtime_error(
        "fuseconv::linear_act: cannot time backends while the stream is being captured; "
        "call once before the capture, or load a timing cache");
  }
  cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(problem.stream)), "cudaStreamSynchronize");
  const Scratch scratch(problem, only);
  Stopwatch watch;
  Problem p = problem;
  p.stream = watch.stream;
  p.relu_checked = 1;
  if (p.scratch == nullptr) {
    p.scratch = scratch.data;
  }

  struct Entry {
    Choice choice;
    cudaGraphExec_t graph;
    int repeats;
    std::vector<float> microseconds;
  };
  std::vector<Entry> entries;
  for (const Choice choice : candidates(p, only)) {
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
      // cuBLAS proposes algorithms that then fail to run. An error of the device is sticky and is thrown here.
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
    const auto middle = entry.microseconds.begin() + kRounds / 2;
    std::nth_element(entry.microseconds.begin(), middle, entry.microseconds.end());
    timings.push_back({entry.choice, *middle});
  }
  std::stable_sort(timings.begin(), timings.end(),
                   [](const Timing& a, const Timing& b) { return a.microseconds < b.microseconds; });
  return timings;
}

bool may_time() {
  static const bool may = [] {
    const char* timing = std::getenv("FUSECONV_TIMING");
    return timing == nullptr || std::string_view(timing) != "off";
  }();
  return may;
}

Choices::Signature Choices::signature_of(const Problem& p, std::optional<Backend> only) {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  int64_t flags = (p.bias != nullptr ? 1 : 0) | (p.residual != nullptr ? 2 : 0) | (p.tf32 != 0 ? 4 : 0) |
                  (p.weight_transposed != 0 ? 8 : 0) | (p.gated != 0 ? 16 : 0);
  // cuBLAS proposes algorithms by alignment, up to 256 bytes.
  for (const void* data : {p.x, p.weight, p.bias, p.residual, static_cast<const void*>(p.y)}) {
    const auto address = reinterpret_cast<uintptr_t>(data) | 256;
    flags = flags << 9 | static_cast<int64_t>(address & (~address + 1) & 511);
  }
  return {device,
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
  const std::string key = key_of(problem, only);
  {
    const std::lock_guard lock(mutex_);
    const auto kept = kept_.find(key);
    if (kept != kept_.end() && takes(problem, kept->second.choice)) {
      return {kept->second.choice, true};
    }
  }
  if (may_time) {
    if (const std::vector<Timing> timings = time_candidates(problem, only); !timings.empty()) {
      const std::lock_guard lock(mutex_);
      kept_.insert_or_assign(key, timings.front());
      if (!path_.empty()) {
        write(path_);
      }
      return {timings.front().choice, true};
    }
  }
  const std::vector<Choice> untimed = candidates(problem, only);
  if (untimed.empty()) {
    std::string reasons;
    for (size_t i = 0; i < kBackends.size(); ++i) {
      if (!only || *only == static_cast<Backend>(i)) {
        reasons.append(reasons.empty() ? "" : "; ").append(kBackends[i]).append(": ");
        reasons += refuses(static_cast<Backend>(i), problem);
      }
    }
    throw std::runtime_error("fuseconv::linear_act: no CUDA backend takes this problem: " + reasons);
  }
  return {untimed.front(), false};
}

Choice Choices::choose(const Problem& problem, bool may_time, std::optional<Backend> only) {
  const Signature signature = signature_of(problem, only);
  {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(signature);
    if (known != known_.end() && (known->second.timed || !may_time)) {
      return known->second.choice;
    }
  }
  const Known found = find(problem, may_time && !capturing(problem), only);
  const std::lock_guard lock(mutex_);
  return known_.insert_or_assign(signature, found).first->second.choice;
}

Choices& Choices::of_process() {
  // Not destroyed, because CUDA may have shut down before a static destructor runs.
  static Choices* const choices = [] {
    auto* made = new Choices;
    if (const char* path = std::getenv("FUSECONV_TIMING_CACHE"); path != nullptr && *path != '\0') {
      if (std::ifstream(path).good()) {
        made->load(path);
      }
      made->path_ = path;
    }
    return made;
  }();
  return *choices;
}

void Choices::load(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    throw std::runtime_error("fuseconv::linear_act: " + path + " does not begin with '" + kHeader + "'");
  }
  std::map<std::string, Timing> read;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key, backend, variant, microseconds;
    std::getline(fields, key, '\t');
    std::getline(fields, backend, '\t');
    std::getline(fields, variant, '\t');
    std::getline(fields, microseconds);
    const auto named = std::find(kBackends.begin(), kBackends.end(), backend);
    try {
      const Choice choice{static_cast<Backend>(named - kBackends.begin()), std::stoi(variant)};
      if (named == kBackends.end()) {
        throw std::invalid_argument(backend);
      }
      read[key] = {choice, std::stof(microseconds)};
    } catch (const std::logic_error&) {
      throw std::runtime_error("fuseconv::linear_act: " + path + ": not a choice: " + line);
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [key, timing] : read) {
    kept_[key] = timing;
  }
  known_.clear();
}

void Choices::save(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  write(path);
}

void Choices::write(const std::string& path) const {
  const std::string partial = path + ".partial." + std::to_string(getpid());
  std::ofstream file(partial);
  file << kHeader << '\n';
  for (const auto& [key, timing] : kept_) {
    file << key << '\t' << kBackends[static_cast<size_t>(timing.choice.backend)] << '\t' << timing.choice.variant
         << '\t' << timing.microseconds << '\n';
  }
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    throw std::runtime_error("fuseconv::linear_act: cannot write the timing cache " + path);
  }
}

}  // namespace fuseconv::linear
