// Defines the policies that decide which calls are captured in CUDA graphs and which graphs are dropped: the interface,
// and the simplest policy. Translates fuseconv/runtime/graph_policy.py to C++, without LibTorch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

// The ways to make a call: direct, or as a replay of its graph. The caller reports the duration of a timed call to the
// policy once the duration is known. `capture` makes a direct call and then captures it. `drop_all` drops all graphs
// and then makes a direct call.
enum class Step { direct, timed_direct, replay, timed_replay, capture, drop_all };

// Decides how to make a call from the shapes of its inputs, which are the key of its graph. The caller must serialize
// all calls of a policy with a lock.
class GraphPolicy {
 public:
  virtual ~GraphPolicy() = default;

  // Returns how to make a call. `contended` is true if a replay would have to wait for a replay on another stream.
  virtual Step step(const Shapes& key, bool contended) = 0;

  // Records the duration of a timed call in seconds. Returns whether the caller must drop the graph of the key.
  virtual bool timed(const Shapes& key, bool contended, bool replayed, double seconds) = 0;

  // Returns the keys whose graphs the caller must drop to make room for a new graph of `size` bytes, or std::nullopt if
  // the new graph must not be captured.
  virtual std::optional<std::vector<Shapes>> room(const Shapes& key, int64_t size) = 0;

  // Records a capture: `size` is the graph's own bytes, `total` the bytes of all graphs including the memory that they
  // share, and `seconds` the duration of the capture. Returns true if the graphs are within the memory limit, and false
  // if the caller must drop all of them.
  virtual bool captured(const Shapes& key, int64_t size, int64_t total, double seconds) = 0;

  // The number of upcoming calls that are made directly, without asking the policy.
  std::atomic<int64_t> rest = 0;
};

// Captures every shape at its first call, and drops the least recently used graphs when there are more than `limit`
// graphs or the graphs hold more than `memory` bytes.
class AtFirstSight final : public GraphPolicy {
 public:
  AtFirstSight(size_t limit, int64_t memory) : limit_(limit), memory_(memory) {}

  Step step(const Shapes& key, bool) override {
    const auto found =
        std::find_if(sizes_.begin(), sizes_.end(), [&](const auto& graph) { return graph.first == key; });
    if (found == sizes_.end()) {
      return Step::capture;
    }
    std::rotate(found, found + 1, sizes_.end());
    return Step::replay;
  }

  bool timed(const Shapes&, bool, bool, double) override { return false; }

  std::optional<std::vector<Shapes>> room(const Shapes&, int64_t size) override {
    std::vector<Shapes> dropped;
    while (!sizes_.empty() && (sizes_.size() >= limit_ || held() + size > memory_)) {
      dropped.push_back(std::move(sizes_.front().first));
      sizes_.erase(sizes_.begin());
    }
    return dropped;
  }

  bool captured(const Shapes& key, int64_t size, int64_t total, double) override {
    sizes_.emplace_back(key, size);
    if (total > memory_) {
      sizes_.clear();
    }
    return total <= memory_;
  }

 private:
  int64_t held() const {
    int64_t sum = 0;
    for (const auto& graph : sizes_) {
      sum += graph.second;
    }
    return sum;
  }

  const size_t limit_;
  const int64_t memory_;
  std::vector<std::pair<Shapes, int64_t>> sizes_;  // least recently used first
};

}  // namespace fuseconv::runtime
