// The tactics known to this process. They come from the bundles whose op libraries the process has loaded and from the
// machine's tuning file.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tuning/tactics.h"

namespace fuseconv::tuning {

// What a call does if its problem was not measured. `off` uses the tactic that is expected to be fastest. `on` measures
// the problem, which takes a hundred times as long as the call. `known` throws std::runtime_error. timing() returns the
// value of the environment variable FUSECONV_TIMING, or `off` if the variable is not set or empty. Throws
// std::runtime_error if the variable has any other value.
enum class Timing { off, on, known };
Timing timing();

inline bool may_time() { return timing() == Timing::on; }

// Throws std::runtime_error if FUSECONV_TIMING is `known`. Must be called for every problem that was not measured.
void check_known(const std::string& family, int64_t size);

// The tactics of the process. Thread-safe. A function that cannot read or write a file throws std::runtime_error, whose
// message names the file.
class ProcessTactics {
 public:
  // Returns the object of this copy of the op library. Each copy has its own object, and all read the same files.
  static ProcessTactics& get();

  // These return the same as the functions of Tactics with these names.
  std::vector<Tactic> measured(const std::string& family, int64_t size);
  std::vector<Tactic> expected(const std::string& family, int64_t size);

  // Stores measured tactics, and also adds them to the file named by FUSECONV_TIMING_CACHE if the variable is set.
  void put(const std::string& family, int64_t size, std::vector<Tactic> tactics);

  // Adds the tactics of a file.
  void load(const std::string& path);

  // Writes all tactics to a file. Replaces the file atomically.
  void save(const std::string& path);

  // Returns a number that changes when `load` or a bundle adds tactics. A caller that remembers choices makes them
  // again when the number has changed.
  int64_t version();

 private:
  ProcessTactics();
  void read_new_files();                             // requires that the mutex is held
  std::string write(const std::string& path) const;  // returns the text

  std::mutex mutex_;
  Tactics tactics_;
  std::string machine_file_;
  std::string written_;  // the text last written to that file
  std::atomic<const void*> newest_read_ = nullptr;
  std::atomic<int64_t> version_ = 0;
};

}  // namespace fuseconv::tuning
