// Measures whether a replay of a CUDA graph or a direct call is faster. Translates fuseconv/runtime/graph_trial.py to
// C++.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace fuseconv::runtime {

class Trial {
 public:
  // Starts a trial. `direct` contains the seconds of earlier direct calls, fewer than kSamples.
  explicit Trial(std::vector<double> direct = {}) : begun_{static_cast<int>(direct.size()), -1} {
    times_[0] = std::move(direct);
  }

  // Returns true if the next call must be a timed replay, false if it must be a timed direct call, and std::nullopt if
  // no more calls need to be timed.
  std::optional<bool> begin() {
    const bool replayed = begun_[true] <= begun_[false];
    if (begun_[replayed] == kSamples) {
      return std::nullopt;
    }
    ++begun_[replayed];
    return replayed;
  }

  // Adds the time of a call that `begin` requested.
  void add(bool replayed, double seconds) {
    if (replayed && !is_loaded_) {
      is_loaded_ = true;
      return;
    }
    times_[replayed].push_back(seconds);
    if (!wins && std::min(times_[0].size(), times_[1].size()) >= kSamples) {
      direct = ranked(times_[0], kFast);
      const double replay = ranked(times_[1], kSlow);
      saving = direct - replay;
      wins = replay <= kGain * direct;
    }
  }

  // Returns the value at index `rank` of the values in ascending order.
  static double ranked(std::vector<double> values, size_t rank) {
    std::sort(values.begin(), values.end());
    return values[rank];
  }

  std::optional<bool> wins;  // whether the replay is faster; empty until it is known
  double direct = 0;         // the seconds of a direct call; 0 until `wins` is known
  double saving = 0;         // the seconds that a replay saves; 0 until `wins` is known

 private:
  static constexpr int kSamples = 5;
  // Compares a fast direct call with a slow replay, so that a replay wins only if it is clearly faster.
  static constexpr size_t kFast = 1, kSlow = 3;
  static constexpr double kGain = 0.98;

  // the number of timed calls that `begin` requested; starts at -1 for replays, because the first replay, in which the
  // device loads the graph, is not counted
  std::array<int, 2> begun_;
  bool is_loaded_ = false;
  std::array<std::vector<double>, 2> times_;
};

}  // namespace fuseconv::runtime
