// Selects the backend for a problem: as measured, or as expected.
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

// Times every candidate, and `others` that compute the problem, by replaying it from a CUDA graph, in several rounds,
// and returns them fastest first. Candidates that fail to run are left out. Overwrites the problem's y and workspace
// and waits for the device. Throws std::runtime_error if the stream is being captured or y is also the residual,
// because timing would corrupt both.
std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only,
                                    const std::vector<tuning::Tactic>& others = {});

// The choices of a process by problem. Thread-safe.
class Choices {
 public:
  static Choices& of_process();

  // The fastest of a new timing, if `may_time`, the problem was not measured and its stream is not being captured. Else
  // the fastest as measured; else as expected from the measured sizes, rows of y, on both sides; else the first
  // candidate. A choice that can still improve is made again when tactics are added. `only` restricts it to one
  // backend. Throws std::runtime_error with the reasons if no backend supports the problem.
  Choice choose(const Problem& problem, bool may_time, std::optional<Backend> only = std::nullopt);

 private:
  // The inputs of a choice in a form that is fast to look up: device, the problem as cuBLAS sees it, alignment.
  using Signature = std::array<int64_t, 13>;
  struct Known {
    Choice choice;
    bool measured;
    int64_t version;  // of the tactics that it was made from
  };
  static Signature signature_of(const Problem& problem, std::optional<Backend> only);
  static Known find(const Problem& problem, bool may_time, std::optional<Backend> only);

  std::mutex mutex_;
  std::map<Signature, Known> known_;
};

}  // namespace fuseconv::linear
