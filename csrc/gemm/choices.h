// Selects the backend and variant for a problem, based on measured or expected times.
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
  float noise;  // the interquartile range of the rounds, relative to their median
};

// Times every candidate, and each tactic in `others` that can compute the problem. Replays each from a CUDA graph in
// several rounds, which are interleaved between the candidates. Returns the timings, fastest first, without the
// candidates that fail to run. Overwrites the problem's y and workspace, and waits for the device. Throws
// std::runtime_error if the stream is being captured.
std::vector<Timing> time_candidates(const Problem& problem, std::optional<Backend> only,
                                    const std::vector<tuning::Tactic>& others = {});

// Remembers the choice for each problem until the process ends. Thread-safe.
class Choices {
 public:
  static Choices& of_process();

  // Returns the choice for a problem. It is the first of these that exists:
  // - the fastest measured choice
  // - the fastest choice of a new timing, if `may_time` and the stream is not being captured
  // - the choice that is expected to be fastest, from the nearest measured numbers of rows of y on both sides
  // - the first candidate
  // If `needs_no_engine` returns true for the problem, the last two are cuDNN only if `only` is. They were not measured
  // at the size of the problem, so the choice is made again when tactics are added, or when a call may time the
  // candidates. `only` restricts the choice to one backend. Throws std::runtime_error with the reasons if no backend
  // supports the problem.
  Choice choose(const Problem& problem, bool may_time, std::optional<Backend> only = std::nullopt);

 private:
  // Everything that a choice depends on, as a key that is fast to look up: the device, the parameters of the problem,
  // and the alignments of its operands.
  using Signature = std::array<int64_t, 26>;
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
