// Which backend to use for which problem: timed once, and kept.
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

// Times every candidate by replaying it from a CUDA graph, in several rounds, and returns them fastest first; those
// that fail to run are left out. Writes problem's y and workspace, and waits for the device. Throws std::runtime_error
// when the stream is being captured, or when y is also the residual: both would spoil what the caller has.
std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only);

// Whether calls may time: the environment variable FUSECONV_TIMING=off forbids it.
bool may_time();

// The timing cache: one line of text a problem, "key <tab> backend <tab> variant <tab> microseconds". A key names the
// GPU, the cuBLAS version, element type, activation, sizes, strides, which addends there are and, if one is forced, the
// backend. Safe to share by threads.
class Choices {
 public:
  // Those of this process. The environment variable FUSECONV_TIMING_CACHE names a file that they are read from when it
  // exists, and written to after each timing.
  static Choices& of_process();

  // The kept choice, if there is one and its backend takes the problem; else the fastest of a new timing, if `may_time`
  // and the stream is not being captured; else the first candidate, until a later call may time. `only` restricts it to
  // one backend. Throws std::runtime_error with the reasons when no backend takes the problem.
  Choice choose(const Problem& problem, bool may_time, std::optional<Backend> only = std::nullopt);

  // Adds the lines of a file, which must be of this format's version. Throws std::runtime_error naming the line.
  void load(const std::string& path);

  // Replaces the file by all that is kept, sorted by key.
  void save(const std::string& path) const;

 private:
  // What a choice depends on, in a form that is quick to look up: device, cuBLAS's own view of the problem, alignment.
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
