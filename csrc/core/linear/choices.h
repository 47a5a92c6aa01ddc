// Which backend to use for which problem: timed once, and kept.
#pragma once

#include <map>
#include <mutex>
#include <optional>
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
  // The kept choice, if there is one and its backend still takes the problem; else the fastest of a new timing, if
  // `may_time` and the stream is not being captured; else the first candidate, which is not kept.
  Choice choose(const Problem& problem, bool may_time);

  // Adds the lines of a file, which must be of this format's version. Throws std::runtime_error naming the line.
  void load(const std::string& path);

  // Replaces the file by all that is kept, sorted by key.
  void save(const std::string& path) const;

 private:
  std::optional<Choice> find(const std::string& key) const;

  mutable std::mutex mutex_;
  std::map<std::string, Timing> kept_;
};

}  // namespace fuseconv::linear
