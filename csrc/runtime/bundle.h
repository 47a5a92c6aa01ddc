// The bundle of fuseconv/bundle/manifest.py: its manifest, and the proof that the folder holds exactly what that says.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseconv/contract.h"

namespace fuseconv::runtime {

// Where the bundle was made, as far as it decides whether it runs elsewhere.
struct Environment {
  std::string machine, cpu, torch;
  std::optional<std::string> onnxruntime, gpu;
};

struct Manifest {
  Contract contract;
  std::map<std::string, std::string> targets;  // the artifact of each, by its path in the bundle
  std::vector<std::string> libraries;          // for torch, in the order in which to load them
  Environment environment;
};

// Throws Error: of kind usage when there is no such folder, refused when anything in it is missing, damaged, exchanged
// or extra.
Manifest open_bundle(const std::filesystem::path& folder);

// Checks that nobody but the user may change what a target runs: its artifact with what lies beside it, the libraries
// that it calls, and the folders that they lie in; throws Error of kind refused.
void check_private(const std::filesystem::path& folder, const std::string& artifact,
                   const std::vector<std::filesystem::path>& libraries);

}  // namespace fuseconv::runtime
