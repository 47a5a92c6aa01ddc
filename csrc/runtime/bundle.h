// Reads the manifest of a bundle, as written by fuseconv/bundle/manifest.py, and checks that the bundle's folder
// contains exactly the files that the manifest lists.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseconv/contract.h"

namespace fuseconv::runtime {

// The properties of the machine on which the bundle was written. A bundle is loaded on another machine only if the
// properties of that machine are compatible.
struct Environment {
  std::string machine, cpu, torch;
  std::optional<std::string> onnxruntime, gpu;
};

// An artifact of a target, and the machine on which it was compiled.
struct Package {
  std::string target, path;
  Environment environment;
};

struct Manifest {
  Contract contract;
  std::map<std::string, std::string> targets;  // maps a target to its artifact's path in the bundle
  std::vector<Package> packages;               // more artifacts of a target, for other machines than `environment`
  std::vector<std::string> libraries;          // paths of the libraries that torch loads, in load order
  Environment environment;
  // the device on which the targets were timed at the conversion; empty if they were not timed
  std::string timed_on;
  std::vector<std::string> fastest;  // the targets that were timed, fastest first
};

// Checks a bundle and returns its manifest. Throws an Error of kind `usage` if the folder does not exist or contains
// one bundle per method, and of kind `refused` if a file is missing, damaged, replaced by another file, or not listed
// in the manifest.
// `shared` says whether the weights that a method shares with other methods are checked too, if the folder is a method.
Manifest open_bundle(const std::filesystem::path& folder, bool shared = true);

// Checks a bundle of several methods, except for the files in the folders of the methods, and returns the names of the
// methods. Throws the same errors; an Error of kind `usage` if the bundle does not have several methods.
std::vector<std::string> open_methods(const std::filesystem::path& folder);

// Checks that only the user can change what a target runs: its artifact, the files next to the artifact, the libraries
// that the target calls, and the folders that contain these files. Throws an Error of kind `refused` if another user
// can change one of them.
void check_private(const std::filesystem::path& folder, const std::string& artifact,
                   const std::vector<std::filesystem::path>& libraries);

}  // namespace fuseconv::runtime
