#include "tuning/process.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace fuseconv::tuning {

// A list entry with the path of a bundle's tuning.json. All copies of the library in a process share one list
// (STB_GNU_UNIQUE).
struct BundleFile {
  std::string path;
  const BundleFile* next;
};
__attribute__((visibility("default"))) inline std::atomic<const BundleFile*> bundle_files_1 = nullptr;

namespace {

bool is_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), R_OK) == 0;
}

// Runs when the library is loaded. If this copy of the library is in BUNDLE/lib, adds BUNDLE/tuning.json to the list,
// so that every program that loads the library gets the bundle's tactics.
bool announce() {
  static const char anchor = 0;
  Dl_info info;
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) {
    return false;
  }
  std::error_code error;  // a relative path would depend on the working directory, which may change
  const std::filesystem::path folder = std::filesystem::absolute(info.dli_fname, error).parent_path();
  const std::string path = folder.parent_path() / "tuning.json";
  if (error || folder.filename() != "lib" || !is_file(path)) {
    return false;
  }
  auto* const file = new BundleFile{path, bundle_files_1.load()};  // lives as long as the process
  while (!bundle_files_1.compare_exchange_weak(file->next, file)) {
  }
  return true;
}

[[maybe_unused]] const bool announced = announce();

std::string fix_of_machine_file() { return "; delete the file, or unset FUSECONV_TIMING_CACHE, which names it"; }

std::string fix_of_bundle(const std::string& path) {
  return "; write it again with `fuseconv tune " + std::filesystem::path(path).parent_path().string() + "`";
}

std::string text_of(const std::string& path, const std::string& fix) {
  std::string text;
  std::ifstream file;
  if (is_file(path)) {  // opening a pipe would wait for its writer
    file.open(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (!file.is_open() || !file) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " cannot be read" + fix);
  }
  return text;
}

void add_text(Tactics& tactics, const std::string& text, const std::string& path, const std::string& fix) {
  try {
    tactics.add(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " is not valid: " + error.what() + fix);
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
      add_text(tactics_, text_of(path, fix_of_machine_file()), path, fix_of_machine_file());
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
  std::vector<const BundleFile*> files;
  // A process that measures, or that must use only known tactics, ignores the tactics of bundles.
  for (const BundleFile* file = newest; file != newest_read_ && timing() == Timing::off; file = file->next) {
    files.push_back(file);
  }
  for (auto file = files.rbegin(); file != files.rend(); ++file) {  // the bundle loaded last takes precedence
    if (is_file((*file)->path)) {  // a bundle may be deleted while its library is loaded
      const std::string fix = fix_of_bundle((*file)->path);
      add_text(tactics_, text_of((*file)->path, fix), (*file)->path, fix);
      ++version_;
    }
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
  // Another copy of the library, or another process, may have written its own measurements.
  if (!machine_file_.empty() && access(machine_file_.c_str(), F_OK) == 0) {
    const std::string fix = fix_of_machine_file();
    if (const std::string text = text_of(machine_file_, fix); text != written_) {
      add_text(tactics_, text, machine_file_, fix);
    }
  }
  tactics_.put(family, size, std::move(tactics));
  if (!machine_file_.empty()) {
    written_ = write(machine_file_);
  }
}

void ProcessTactics::load(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string fix = "; measure it again, or load another file";
  add_text(tactics_, text_of(path, fix), path, fix);
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

std::string ProcessTactics::write(const std::string& path) const {
  std::string text = tactics_.to_json();
  const std::string partial = path + ".partial." + std::to_string(getpid());
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    throw std::runtime_error("fuseconv: the tuning file " + path + " cannot be written");
  }
  return text;
}

}  // namespace fuseconv::tuning
