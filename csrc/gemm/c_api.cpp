// A plain C interface to the backends, for the benchmark that calls them on memory of another framework.
#include <algorithm>
#include <cstring>
#include <exception>

#include "gemm/backends.h"
#include "gemm/choices.h"
#include "gemm/cublaslt.h"
#include "gemm/sm90.h"
#include "tuning/process.h"

namespace {

using namespace fuseconv::linear;

// Runs the body and returns its result. If the body throws, copies the exception's message to `message` and returns -1.
template <class Body>
int guarded(char* message, int capacity, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), static_cast<size_t>(capacity) - 1);
    message[capacity - 1] = '\0';
    return -1;
  }
}

}  // namespace

extern "C" {

int fuseconv_linear_run(const Problem* problem, Choice choice, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    run(*problem, choice);
    return 0;
  });
}

// Writes at most `room` choices to `choices`, and returns the number of all choices, which may be larger than `room`.
int fuseconv_linear_candidates(const Problem* problem, Choice* choices, int room, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    const std::vector<Choice> found = candidates(*problem, std::nullopt);
    for (size_t i = 0; i < found.size() && i < static_cast<size_t>(room); ++i) {
      choices[i] = found[i];
    }
    return static_cast<int>(found.size());
  });
}

// Returns 1 and writes the reason to `message` if the backend does not support the problem, else returns 0.
int fuseconv_linear_refuses(const Problem* problem, int backend, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    const std::string reason = refuses(static_cast<Backend>(backend), *problem);
    std::strncpy(message, reason.c_str(), static_cast<size_t>(capacity) - 1);
    return reason.empty() ? 0 : 1;
  });
}

int fuseconv_linear_describe(Choice choice, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    std::strncpy(message, to_string(choice).c_str(), static_cast<size_t>(capacity) - 1);
    return 0;
  });
}

// Writes at most `room` timings to `timings`, fastest first, and returns the number of all timings, which may be larger
// than `room`.
int fuseconv_linear_time(const Problem* problem, Timing* timings, int room, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    const std::vector<Timing> found = time_candidates(*problem, std::nullopt);
    std::copy_n(found.begin(), std::min(found.size(), static_cast<size_t>(room)), timings);
    return static_cast<int>(found.size());
  });
}

// Writes the choice for a problem to `choice`. If `may_time` is not 0, a problem that was not measured is timed first.
// The choice is remembered until the process ends.
int fuseconv_linear_choose(const Problem* problem, int may_time, Choice* choice, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    *choice = Choices::of_process().choose(*problem, may_time != 0);
    return 0;
  });
}

int fuseconv_linear_load_choices(const char* path, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    fuseconv::tuning::ProcessTactics::get().load(path);
    return 0;
  });
}

int fuseconv_linear_save_choices(const char* path, char* message, int capacity) {
  return guarded(message, capacity, [&] {
    fuseconv::tuning::ProcessTactics::get().save(path);
    return 0;
  });
}

int fuseconv_linear_sm90_variant(int shape, int cluster_m, int cluster_n, int strip, int early) {
  return sm90::encode({shape, cluster_m, cluster_n, strip, early != 0});
}

long fuseconv_linear_cublas_version() { return static_cast<long>(cublaslt::version()); }

}  // extern "C"
