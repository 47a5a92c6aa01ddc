// The weights that an artifact stores elsewhere in its bundle, as described in fuseconv/weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>

namespace fuseconv::runtime {

using Weights = std::unordered_map<std::string, at::Tensor>;

// Returns the weights by their names in the artifact, or nothing if the artifact itself contains them. On the CPU, the
// tensors use the memory-mapped file, which all processes share. Throws Error of kind refused if a file is missing or
// damaged.
std::optional<Weights> weights_of_artifact(const std::filesystem::path& artifact, const std::string& device);

}  // namespace fuseconv::runtime
