// Implements the policy of `Capture::automatic`, which captures a shape once its graph pays off. Translates
// fuseconv/runtime/graph_payoff.py to C++, with the same constants and the same steps for the same calls. The Python
// file and docs/adr/0018-graph-policy.md give the reasons. Times are in seconds.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "graph_policy.h"
#include "graph_trial.h"

namespace fuseconv::runtime {

class WhenItPays final : public GraphPolicy {
 public:
  // `limit` is the maximum number of graphs and `memory` the maximum number of bytes that they may hold. If `recurs` is
  // true, there is only one shape, which is captured at its first call.
  WhenItPays(size_t limit, int64_t memory, bool recurs = false) : limit_(limit), memory_(memory), recurs_(recurs) {}

  Step step(const Shapes& key, bool contended) override {
    Shape& shape = counted(key);
    if (shape.size) {
      return graphed(shape, contended);
    }
    pay(kShare * (1 + rested_) * expected(shape) - (graphs_.empty() ? 0 : kLooking));
    rested_ = 0;
    if (pays(shape)) {
      return Step::capture;
    }
    if (graphs_.empty()) {
      rested_ = drawn_rest();
      rest = rested_;
    } else {
      gain_ -= kLooking;
      if (gain_ < -kHalfLife * kLooking) {
        gain_ = 0;
        drop_all();
        return Step::drop_all;
      }
    }
    if (shape.begun < kFirstTimed) {
      ++shape.begun;
      return Step::timed_direct;
    }
    return Step::direct;
  }

  bool timed(const Shapes& key, bool contended, bool replayed, double seconds) override {
    if (!replayed) {
      const double known = direct_;
      direct_ = seconds < known ? (known + seconds) / 2 : std::min(seconds, known > 0 ? 1.1 * known : seconds);
    }
    const auto found = shapes_.find(key);
    if (found == shapes_.end()) {
      return false;
    }
    Shape& shape = found->second;
    if (!shape.size) {
      if (!replayed && shape.known > 0) {
        shape.times.push_back(seconds);
      }
      ++shape.known;
      return false;
    }
    Trial& trial = shape.trials[contended];
    const bool known_before = trial.wins.has_value();
    trial.add(replayed, seconds);
    if (!trial.wins || known_before || contended) {
      return false;
    }
    ++judged_;
    shares_ += std::max(0.0, trial.saving / trial.direct);
    const bool loses = !*trial.wins;
    if (loses) {
      shape.banned = kAgain;
      drop(key);
    }
    return loses;
  }

  std::optional<std::vector<Shapes>> room(const Shapes& key, int64_t size) override {
    Shape& shape = shapes_.at(key);
    if (size > memory_ || (too_large_ && size >= *too_large_)) {
      shape.banned = kAgain;
      return std::nullopt;
    }
    std::vector<Shapes> others = graphs_, dropped;
    std::stable_sort(others.begin(), others.end(),
                     [&](const Shapes& a, const Shapes& b) { return value(shapes_.at(a)) < value(shapes_.at(b)); });
    size_t count = graphs_.size();
    int64_t held = 0;
    for (const Shapes& other : graphs_) {
      held += *shapes_.at(other).size;
    }
    double lost = 0;
    for (const Shapes& other : others) {
      if (count < limit_ && held + size <= memory_) {
        break;
      }
      lost += kMargin * value(shapes_.at(other));
      if (value(shape) <= lost) {
        shape.asks = lost / saving(shape);
        return std::nullopt;
      }
      dropped.push_back(other);
      --count;
      held -= *shapes_.at(other).size;
    }
    for (const Shapes& other : dropped) {
      drop(other);
    }
    return dropped;
  }

  bool captured(const Shapes& key, int64_t size, int64_t total, double seconds) override {
    if (!cost_) {  // the first capture is free, because the cost of a capture is not known before
      cost_ = seconds;
    } else {
      cost_ = (*cost_ + seconds) / 2;
      pay(-seconds);
    }
    Shape& shape = shapes_.at(key);
    shape.size = size;
    shape.trials = {Trial(shape.times), Trial()};
    shape.left = {kAgain, kAgain};
    graphs_.push_back(key);
    if (total <= memory_) {
      return true;
    }
    shape.banned = kAgain;
    too_large_ = size;
    drop_all();
    return false;
  }

 private:
  static constexpr double kShare = 0.01, kBank = 16, kPriorCost = 4, kLeastCost = 1e-3, kPriorSaving = 0.5;
  static constexpr double kMargin = 1.5, kWatching = 12e-6, kLooking = 3e-6, kWatched = 0.005;
  static constexpr int64_t kHalfLife = 2048, kAgain = 4096, kFirstTimed = 4, kLongestRest = 512;
  static constexpr size_t kKeys = 512;

  struct Shape {
    double calls = 0;  // the number of calls, with less weight on earlier calls
    // the number of calls at which its graph is worth more than the graphs that would be dropped to make room
    double asks = 0;
    // before there is a graph: the direct calls whose timing began, and the times reported
    int64_t begun = 0, known = 0;
    std::vector<double> times;    // the times reported before there is a graph, without the first
    std::optional<int64_t> size;  // the bytes of the graph, if there is one
    // with the graph: one trial of calls that did not compete with other streams, one of calls that did
    std::array<Trial, 2> trials;
    std::array<int64_t, 2> left{};  // the number of calls until each trial is repeated
    // the number of calls until the shape may be captured again, after its graph was slower or did not fit
    int64_t banned = 0;
  };

  Shape& counted(const Shapes& key) {
    ++ticks_;
    while (ticks_ >= kHalfLife || (shapes_.size() >= kKeys && !shapes_.contains(key))) {
      ticks_ = 0;
      for (auto& [known, shape] : shapes_) {
        shape.calls /= 2;
        shape.asks /= 2;
      }
      std::erase_if(shapes_, [](const auto& item) { return item.second.calls < 1 && !item.second.size; });
    }
    Shape& shape = shapes_[key];
    ++shape.calls;
    return shape;
  }

  Step graphed(Shape& shape, bool contended) {
    Trial& trial = shape.trials[contended];
    if (--shape.left[contended] == 0) {
      shape.left[contended] = kAgain;
      trial = Trial();
    }
    if (!trial.wins) {
      gain_ = std::min(0.0, gain_ + saving(shape));
      const std::optional<bool> replayed = trial.begin();
      return !replayed ? Step::replay : *replayed ? Step::timed_replay : Step::timed_direct;
    }
    if (!*trial.wins) {
      return Step::direct;
    }
    pay(trial.saving);
    gain_ = std::min(0.0, gain_ + trial.saving);
    return Step::replay;
  }

  // Returns whether to capture the shape now, which is the case if replaying its calls so far would have saved the cost
  // of a capture.
  bool pays(Shape& shape) const {
    if (shape.banned > 0) {
      --shape.banned;
      return false;
    }
    if (recurs_) {
      return true;
    }
    const double cost = cost_.value_or(std::max(kPriorCost * expected(shape), kLeastCost));
    if (direct_ == 0 || shape.calls < shape.asks || value(shape) < cost) {
      return false;
    }
    return !cost_ || balance_ >= cost;
  }

  double value(const Shape& shape) const { return shape.calls * saving(shape); }

  double saving(const Shape& shape) const {
    const Trial& trial = shape.trials[false];
    return shape.size && trial.wins.value_or(false) ? trial.saving
                                                    : expected(shape) * shares_ / static_cast<double>(judged_);
  }

  double expected(const Shape& shape) const {
    return shape.times.empty() ? direct_ : Trial::ranked(shape.times, (shape.times.size() - 1) / 2);
  }

  void pay(double seconds) {
    const double most = cost_ ? kBank * *cost_ : kBank * kPriorCost * direct_;
    balance_ = std::min(balance_ + seconds, std::max(most, balance_));
  }

  void drop(const Shapes& key) {
    shapes_.at(key).size.reset();
    std::erase(graphs_, key);
  }

  void drop_all() {
    for (const Shapes& key : graphs_) {
      shapes_.at(key).size.reset();
    }
    graphs_.clear();
  }

  // Returns the number of upcoming calls that are made without asking the policy. The number is random, so that the
  // policy eventually observes every shape, even if the shapes recur in a fixed order.
  int64_t drawn_rest() {
    if (direct_ == 0) {
      return 0;
    }
    const double period = kWatching / (kWatched * direct_);
    if (period <= 1) {
      return 0;
    }
    random_ = (random_ * 1103515245 + 12345) % (int64_t{1} << 31);
    const double drawn = 2 * (period - 1) * static_cast<double>(random_) / static_cast<double>(int64_t{1} << 31);
    return static_cast<int64_t>(std::min(static_cast<double>(kLongestRest), drawn));
  }

  const size_t limit_;
  const int64_t memory_;
  const bool recurs_;
  std::map<Shapes, Shape> shapes_;
  std::vector<Shapes> graphs_;  // in the order of capture
  int64_t ticks_ = 0, rested_ = 0, random_ = 1, judged_ = 1;
  double gain_ = 0, balance_ = 0, direct_ = 0, shares_ = kPriorSaving;
  std::optional<double> cost_;
  std::optional<int64_t> too_large_;
};

}  // namespace fuseconv::runtime
