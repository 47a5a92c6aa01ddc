// Which backend to use for which problem: timed once, and kept.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/linear/backends.h"

namespace fuseconv::linear {

struct Timing {
  Choice choice;
  float microseconds;
};

// Times every candidate by replaying it from a CUDA graph, in several rounds, and returns them fastest first; those
// that fail to run are left out. Writes problem's y and workspace, and waits for the device. Throws std::runtime_error
// when the stream is being captured, or when y is also the residual: both would spoil what the caller has.
std::vector<Timing> time_candidates(const Problem& problem);

// The timing cache: one line of text a problem, "key <tab> backend <tab> variant <tab> microseconds". A key names the
// GPU, the cuBLAS version, element type, activation, sizes, strides and which addends there are. Safe to share by
// threads.
class Choices {
 public:
  // The kept choice, if there is one and its backend takes the problem; else the fastest of a new timing, if `may_time`
  // and the stream is not being captured; else the first candidate, until a later call may time.
  Choice choose(const Problem& problem, bool may_time);

  // Adds the lines of a file, which must be of this format's version. Throws std::runtime_error naming the line.
  void load(const std::string& path);

  // Replaces the file by all that is kept, sorted by key.
  void save(const std::string& path) const;

 private:
  // What a choice depends on, in a form that is quick to look up: device, cuBLAS's own view of the problem, alignment.
  using Signature = std::array<int64_t, 12>;
  struct Known {
    Choice choice;
    bool timed;
  };
  static Signature signature_of(const Problem& problem);
  Known find(const Problem& problem, bool may_time);

  mutable std::mutex mutex_;
  std::map<std::string, Timing> kept_;
  std::map<Signature, Known> known_;
};

}  // namespace fuseconv::linear
