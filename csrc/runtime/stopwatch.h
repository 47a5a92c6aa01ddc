// Times calls on CUDA streams without waiting for the calls to finish. Translates fuseconv/runtime/stopwatch.py to C++.
#pragma once

#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace fuseconv::runtime {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point at) { return std::chrono::duration<double>(Clock::now() - at).count(); }

inline c10::Event recorded(const c10::cuda::CUDAStream& stream) {
  // BACKEND_DEFAULT enables timing
  c10::Event event(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  event.record(stream);
  return event;
}

// Times calls, each identified by a value. Any thread may begin and end a call. The time of a call is the longer of two
// times: the host time until the call is launched, and the device time between an event before the call and an event
// after it.
template <typename T>
class Stopwatch {
 public:
  struct Begun {
    c10::cuda::CUDAStream stream;
    Clock::time_point at;
    c10::Event event;
  };

  static Begun begin(const c10::cuda::CUDAStream& stream, Clock::time_point at) {
    return {stream, at, recorded(stream)};
  }

  // Must be called after the last launch of the call.
  void end(Begun begun, T value) {
    const double host = seconds_since(begun.at);
    const std::lock_guard lock(mutex_);
    ended_.push_back({std::move(value), host, std::move(begun.event), recorded(begun.stream)});
  }

  // Removes and returns the value and the seconds of the earliest ended call. Returns std::nullopt if no call is left
  // or the device has not finished the earliest call.
  std::optional<std::pair<T, double>> finished() {
    const std::lock_guard lock(mutex_);
    if (ended_.empty() || !ended_.front().end.query()) {
      return std::nullopt;
    }
    Ended& first = ended_.front();
    const double seconds = std::max(first.host, first.begin.elapsedTime(first.end) / 1e3);
    std::optional<std::pair<T, double>> result(std::in_place, std::move(first.value), seconds);
    ended_.pop_front();
    return result;
  }

 private:
  struct Ended {
    T value;
    double host;
    c10::Event begin, end;
  };

  std::mutex mutex_;
  std::deque<Ended> ended_;
};

}  // namespace fuseconv::runtime
