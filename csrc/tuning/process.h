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

// What a call does with a problem that was not measured: it uses the tactic that is expected to be fastest (off),
// measures the problem, which takes a hundred times as long as the call (on), or throws (known). timing() reads the
// environment variable FUSECONV_TIMING; the default is off. Throws std::runtime_error if the variable has another
// value.
enum class Timing { off, on, known };
Timing timing();

inline bool may_time() { return timing() == Timing::on; }

// Throws std::runtime_error if FUSECONV_TIMING is `known`. Called for a problem that was not measured.
void check_known(const std::string& family, int64_t size);

// The tactics of the process. Thread-safe. The functions throw std::runtime_error, naming the file, if a file cannot be
// read or written.
class ProcessTactics {
 public:
  // Returns the object of this copy of the op library. Each copy has its own object, and all read the same files.
  static ProcessTactics& get();

  // The same as in Tactics.
  std::vector<Tactic> measured(const std::string& family, int64_t size);
  std::vector<Tactic> expected(const std::string& family, int64_t size);

  // Stores measured tactics, and also adds them to the file named by FUSECONV_TIMING_CACHE if the variable is set.
  void put(const std::string& family, int64_t size, std::vector<Tactic> tactics);

  // Adds the tactics of a file.
  void load(const std::string& path);

  // Writes all tactics to a file. Replaces the file atomically.
  void save(const std::string& path);

  // Returns a number that changes when `load` or a bundle adds tactics, so that the caller can redo earlier choices.
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
