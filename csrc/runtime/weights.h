// The weights of an artifact that are stored elsewhere in its bundle, as fuseconv/weights describes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>

namespace fuseconv::runtime {

using Weights = std::unordered_map<std::string, at::Tensor>;

// The weights by their names in the artifact; nothing if it contains them. On the CPU their memory is that of the file,
// which is mapped, and shared by all processes. Throws Error of kind refused if a file is missing or damaged.
std::optional<Weights> weights_of_artifact(const std::filesystem::path& artifact, const std::string& device);

}  // namespace fuseconv::runtime
