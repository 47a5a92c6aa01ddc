// Selects the backend for a problem, from measured times or from expected times.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gemm/backends.h"
#include "tuning/tactics.h"

namespace fuseconv::linear {

struct Timing {
  Choice choice;
  float microseconds;
  float noise;  // the spread of the middle half of the rounds, relative to the median
};

// Times every candidate, and those of `others` that can compute the problem. Each is replayed from a CUDA graph in
// several rounds. Returns the timings, fastest first, and leaves out candidates that fail to run. Overwrites the
// problem's y and workspace, and waits for the device. Throws std::runtime_error if the stream is being captured.
std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only,
                                    const std::vector<tuning::Tactic>& others = {});

// The choices of the process by problem. Thread-safe.
class Choices {
 public:
  static Choices& of_process();

  // Returns the choice for a problem. The first of these that applies is used:
  //   the fastest measured choice
  //   the fastest of a new timing, if `may_time` and the stream is not being captured
  //   the choice that is expected to be fastest from the nearest measured numbers of rows of y on both sides
  //   the first candidate
  // A choice that can still improve is made again when tactics are added. `only` restricts the choice to one backend.
  // Throws std::runtime_error with the reasons if no backend supports the problem.
  Choice choose(const Problem& problem, bool may_time, std::optional<Backend> only = std::nullopt);

 private:
  // The inputs of a choice as a key that is fast to look up: the device, the problem as cuBLAS sees it, and alignments.
  using Signature = std::array<int64_t, 13>;
  struct Known {
    Choice choice;
    bool measured;
    int64_t version;  // the version of the tactics from which the choice was made
  };
  static Signature signature_of(const Problem& problem, std::optional<Backend> only);
  static Known find(const Problem& problem, bool may_time, std::optional<Backend> only);

  std::mutex mutex_;
  std::map<Signature, Known> known_;
};

}  // namespace fuseconv::linear
