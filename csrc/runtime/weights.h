// Loads the weights of an artifact that are stored outside the artifact, elsewhere in its bundle, as fuseconv/weights
// describes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>

namespace fuseconv::runtime {

using Weights = std::unordered_map<std::string, at::Tensor>;

// Returns the weights by their names in the artifact, or std::nullopt if the artifact itself contains its weights. On
// the CPU, the tensors are views of the memory-mapped file, which all processes share. Throws an Error of kind
// `refused` if a file is missing or damaged.
std::optional<Weights> weights_of_artifact(const std::filesystem::path& artifact, const std::string& device);

}  // namespace fuseconv::runtime
