// Whether a replay or a direct call is faster: fuseconv/runtime/graph_trial.py in C++.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace fuseconv::runtime {

class Trial {
 public:
  // Starts with the times of direct calls that are known already, fewer than kSamples.
  explicit Trial(std::vector<double> direct = {}) : begun_{static_cast<int>(direct.size()), -1} {
    times_[0] = std::move(direct);
  }

  // Whether the next call is a replay and is timed, or nothing if no more calls need to be.
  std::optional<bool> begin() {
    const bool replayed = begun_[true] <= begun_[false];
    if (begun_[replayed] == kSamples) {
      return std::nullopt;
    }
    ++begun_[replayed];
    return replayed;
  }

  // Adds the time of a call that was begun.
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

  // The value of a rank, in ascending order.
  static double ranked(std::vector<double> values, size_t rank) {
    std::sort(values.begin(), values.end());
    return values[rank];
  }

  std::optional<bool> wins;  // whether the replay is faster, once that is known
  double direct = 0;         // what a direct call takes, then, in seconds
  double saving = 0;         // what a replay saves of it

 private:
  static constexpr int kSamples = 5;
  // A direct call that is rather fast is compared with a replay that is rather slow.
  static constexpr size_t kFast = 1, kSlow = 3;
  static constexpr double kGain = 0.98;

  std::array<int, 2> begun_;  // the first replay, with which the device loads the graph, does not count
  bool is_loaded_ = false;
  std::array<std::vector<double>, 2> times_;
};

}  // namespace fuseconv::runtime
