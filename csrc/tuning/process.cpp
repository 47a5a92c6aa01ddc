#include "tuning/process.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace fuseconv::tuning {

// The tuning.json of a bundle, in a list that all copies of the library in a process share (STB_GNU_UNIQUE).
struct BundleFile {
  std::string path;
  const BundleFile* next;
};
__attribute__((visibility("default"))) inline std::atomic<const BundleFile*> bundle_files_1 = nullptr;

namespace {

// A copy of the library that lies in BUNDLE/lib adds BUNDLE/tuning.json when it is loaded, so that every program that
// loads the library has its tactics.
bool announce() {
  static const char anchor = 0;
  Dl_info info;
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) {
    return false;
  }
  std::string folder = info.dli_fname;
  const auto up = [&] { folder.resize(std::min(folder.size(), folder.rfind('/'))); };
  up();
  up();
  const std::string path = folder + "/tuning.json";
  if (folder.empty() || access(path.c_str(), R_OK) != 0) {
    return false;
  }
  auto* const file = new BundleFile{path, bundle_files_1.load()};  // for as long as the process
  while (!bundle_files_1.compare_exchange_weak(file->next, file)) {
  }
  return true;
}

[[maybe_unused]] const bool announced = announce();

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " cannot be read");
  }
  return text;
}

void add_file(Tactics& tactics, const std::string& path) {
  const std::string text = text_of(path);
  try {
    tactics.add(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " is not valid: " + error.what() +
                             "; write it again with `fuseconv tune`");
  }
}

}  // namespace

Timing timing() {
  static const Timing timing = [] {
    const char* value = std::getenv("FUSECONV_TIMING");
    const std::string_view word = value == nullptr || *value == '\0' ? "off" : value;
    if (word != "on" && word != "off" && word != "known") {
      throw std::runtime_error("fuseconv: FUSECONV_TIMING is " + std::string(word) + "; set it to on, off or known");
    }
    return word == "on" ? Timing::on : word == "known" ? Timing::known : Timing::off;
  }();
  return timing;
}

void check_known(const std::string& family, int64_t size) {
  if (timing() == Timing::known) {
    throw std::runtime_error("fuseconv: there is no tactic for the problem " + family + " at size " +
                             std::to_string(size));
  }
}

ProcessTactics::ProcessTactics() {
  const char* path = std::getenv("FUSECONV_TIMING_CACHE");
  if (path != nullptr && *path != '\0') {
    if (access(path, F_OK) == 0) {
      add_file(tactics_, path);
    }
    machine_file_ = path;
  }
}

ProcessTactics& ProcessTactics::get() {
  // Not destroyed, because kernels may run while static objects are destroyed.
  static ProcessTactics* const tactics = new ProcessTactics;
  return *tactics;
}

void ProcessTactics::read_new_files() {
  const BundleFile* const newest = bundle_files_1.load();
  // A process that measures, or that must have been told everything, does not take what bundles bring.
  for (const BundleFile* file = newest; file != newest_read_ && timing() == Timing::off; file = file->next) {
    add_file(tactics_, file->path);
    ++version_;
  }
  newest_read_ = newest;
}

std::vector<Tactic> ProcessTactics::measured(const std::string& family, int64_t size) {
  const std::lock_guard lock(mutex_);
  read_new_files();
  return tactics_.measured(family, size);
}

std::vector<Tactic> ProcessTactics::expected(const std::string& family, int64_t size) {
  const std::lock_guard lock(mutex_);
  read_new_files();
  return tactics_.expected(family, size);
}

void ProcessTactics::put(const std::string& family, int64_t size, std::vector<Tactic> tactics) {
  const std::lock_guard lock(mutex_);
  tactics_.put(family, size, std::move(tactics));
  if (!machine_file_.empty()) {
    write(machine_file_);
  }
}

void ProcessTactics::load(const std::string& path) {
  const std::lock_guard lock(mutex_);
  add_file(tactics_, path);
  ++version_;
}

void ProcessTactics::save(const std::string& path) {
  const std::lock_guard lock(mutex_);
  write(path);
}

int64_t ProcessTactics::version() {
  if (bundle_files_1.load() != newest_read_) {
    const std::lock_guard lock(mutex_);
    read_new_files();
  }
  return version_;
}

void ProcessTactics::write(const std::string& path) const {
  const std::string partial = path + ".partial." + std::to_string(getpid());
  std::ofstream file(partial, std::ios::binary);
  file << tactics_.to_json();
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " cannot be written");
  }
}

}  // namespace fuseconv::tuning
