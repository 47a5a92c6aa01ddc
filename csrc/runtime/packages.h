// Picks the artifact of a target that this machine runs, as fuseconv/runtime/packages.py does. A bundle may contain
// several artifacts of a target that contains machine code, each compiled for another GPU or for other CPUs.
#pragma once

#include <filesystem>
#include <string>

#include "bundle.h"

namespace fuseconv::runtime {

// Returns whether ONNX Runtime runs a target, and not LibTorch.
bool is_onnx(const std::string& target);

// Returns the artifact of a target to load. `gpu` is the architecture of this machine's GPU, such as "9.0", or empty if
// the bundle is for the CPU. Throws an Error of kind `unsupported` if every artifact requires another machine, GPU
// architecture or processor, or a newer torch or ONNX Runtime.
Package package_here(const Manifest& manifest, const std::string& target, const std::string& gpu,
                     const std::filesystem::path& folder);

// Returns whether every artifact of a target was compiled for another machine, GPU architecture or processor.
bool is_for_others(const Manifest& manifest, const std::string& target, const std::string& gpu);

}  // namespace fuseconv::runtime
