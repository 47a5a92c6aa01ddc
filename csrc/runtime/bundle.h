// The bundle of fuseconv/bundle/manifest.py: its manifest, and the check that the folder contains exactly the files it
// lists.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseconv/contract.h"

namespace fuseconv::runtime {

// The properties of the machine on which the bundle was made that decide whether it runs elsewhere.
struct Environment {
  std::string machine, cpu, torch;
  std::optional<std::string> onnxruntime, gpu;
};

struct Manifest {
  Contract contract;
  std::map<std::string, std::string> targets;  // the artifact of each target, by its path in the bundle
  std::vector<std::string> libraries;          // for torch, in load order
  Environment environment;
  std::string timed_on;              // the device on which the targets were timed at the conversion; empty if not
  std::vector<std::string> fastest;  // the targets that were timed, the fastest first
};

// Throws Error: of kind usage if there is no such folder; of kind refused if anything in it is missing, damaged,
// swapped or unexpected.
Manifest open_bundle(const std::filesystem::path& folder);

// Checks that only the user may change what a target runs: its artifact and the files next to it, the libraries that it
// calls, and their folders. Throws Error of kind refused.
void check_private(const std::filesystem::path& folder, const std::string& artifact,
                   const std::vector<std::filesystem::path>& libraries);

}  // namespace fuseconv::runtime
