// Which calls are captured in CUDA graphs and which graphs are dropped: what a policy answers, and the plain policy.
// fuseconv/runtime/graph_policy.py in C++, without LibTorch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

// How a call is made. What a timed call took is reported to the policy, once it is known. `capture` is a direct call
// and a capture after it, and `drop_all` a direct call after all graphs were dropped.
enum class Step { direct, timed_direct, replay, timed_replay, capture, drop_all };

// Decides for calls by the shapes of their inputs. The caller orders its calls by a lock.
class GraphPolicy {
 public:
  virtual ~GraphPolicy() = default;

  // How a call is made. `contended`: a replay would wait for one of another stream.
  virtual Step step(const Shapes& key, bool contended) = 0;

  // Reports what a timed call took. Returns whether the graph of the key is to be dropped.
  virtual bool timed(const Shapes& key, bool contended, bool replayed, double seconds) = 0;

  // The keys whose graphs make room for a new one of `size` bytes, or nothing if it is not worth it.
  virtual std::optional<std::vector<Shapes>> room(const Shapes& key, int64_t size) = 0;

  // Reports a capture: the graph's own bytes, those of all graphs with what they share, and what it took. Returns false
  // if the graphs exceed the limit now, and all are to be dropped.
  virtual bool captured(const Shapes& key, int64_t size, int64_t total, double seconds) = 0;

  // The number of the next calls that are made directly and need not be shown to the policy.
  std::atomic<int64_t> rest = 0;
};

// Captures every shape when it is first called, and drops the least recently used ones.
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
