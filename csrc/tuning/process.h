// The tactics that this process knows, from the bundles whose op libraries it has loaded and from the machine's file.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tuning/tactics.h"

namespace fuseconv::tuning {

// What a call does with a problem that was not measured: it uses what is expected of it (off), measures it, which takes
// a hundred times as long as the call (on), or throws (known). From the environment variable FUSECONV_TIMING, by
// default off. Throws std::runtime_error if it is none of these.
enum class Timing { off, on, known };
Timing timing();

inline bool may_time() { return timing() == Timing::on; }

// Throws std::runtime_error if every problem must have been measured.
void check_known(const std::string& family, int64_t size);

// Thread-safe. The functions throw std::runtime_error that names the file if it cannot be read or written.
class ProcessTactics {
 public:
  // Each copy of the op library has an object of its own, and all have the same files.
  static ProcessTactics& get();

  // As in Tactics.
  std::vector<Tactic> measured(const std::string& family, int64_t size);
  std::vector<Tactic> expected(const std::string& family, int64_t size);

  // Stores what was measured, and adds it to the file that FUSECONV_TIMING_CACHE names, if any.
  void put(const std::string& family, int64_t size, std::vector<Tactic> tactics);

  // Adds the tactics of a file.
  void load(const std::string& path);

  // Writes all tactics to a file, which is replaced atomically.
  void save(const std::string& path);

  // Changes whenever tactics were added, so that choices made before can be made again.
  int64_t version();

 private:
  ProcessTactics();
  void read_new_files();                             // the mutex is held
  std::string write(const std::string& path) const;  // returns the text

  std::mutex mutex_;
  Tactics tactics_;
  std::string machine_file_;
  std::string written_;  // the text of that file, as it was written last
  std::atomic<const void*> newest_read_ = nullptr;
  std::atomic<int64_t> version_ = 0;
};

}  // namespace fuseconv::tuning
