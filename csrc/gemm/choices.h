// Selects the backend for a problem: timed once, then cached.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gemm/backends.h"

namespace fuseconv::linear {

struct Timing {
  Choice choice;
  float microseconds;
};

// Times every candidate by replaying it from a CUDA graph, in several rounds, and returns them fastest first.
// Candidates that fail to run are left out. Overwrites the problem's y and workspace and waits for the device. Throws
// std::runtime_error if the stream is being captured or y is also the residual, because timing would corrupt both.
std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only);

// Whether calls may time. The environment variable FUSECONV_TIMING=off disables it.
bool may_time();

// The timing cache: one line of text per problem, "key <tab> backend <tab> variant <tab> microseconds". A key contains
// the GPU, the cuBLAS version, element type, activation, sizes, strides, the addends that are present and the forced
// backend, if any. Thread-safe.
class Choices {
 public:
  // The timings of this process. The environment variable FUSECONV_TIMING_CACHE names a file that is read if it exists,
  // and written after each timing.
  static Choices& of_process();

  // The cached choice, if there is one and its backend supports the problem; else the fastest of a new timing, if
  // `may_time` and the stream is not being captured; else the first candidate, until a later call may time. `only`
  // restricts it to one backend. Throws std::runtime_error with the reasons if no backend supports the problem.
  Choice choose(const Problem& problem, bool may_time, std::optional<Backend> only = std::nullopt);

  // Adds the lines of a file, which must have this format version. Throws std::runtime_error that names the line.
  void load(const std::string& path);

  // Replaces the file with all cached timings, sorted by key.
  void save(const std::string& path) const;

 private:
  // The inputs of a choice in a form that is fast to look up: device, the problem as cuBLAS sees it, alignment.
  using Signature = std::array<int64_t, 13>;
  struct Known {
    Choice choice;
    bool timed;
  };
  static Signature signature_of(const Problem& problem, std::optional<Backend> only);
  Known find(const Problem& problem, bool may_time, std::optional<Backend> only);
  void write(const std::string& path) const;  // the mutex is held

  std::string path_;
  mutable std::mutex mutex_;
  std::map<std::string, Timing> kept_;
  std::map<Signature, Known> known_;
};

}  // namespace fuseconv::linear
