// Times calls on CUDA streams without ever waiting for them: fuseconv/runtime/stopwatch.py in C++.
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
  c10::Event event(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);  // which has a time
  event.record(stream);
  return event;
}

// Times calls, each known by a value. Any thread may begin and end them. A call takes the longer one of two times: that
// of the host until it has launched the call, and that of the device between an event before and one after it.
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

  // After the last launch of the call.
  void end(Begun begun, T value) {
    const double host = seconds_since(begun.at);
    const std::lock_guard lock(mutex_);
    ended_.push_back({std::move(value), host, std::move(begun.event), recorded(begun.stream)});
  }

  // The value and seconds of the next call that the device has finished, in order.
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
