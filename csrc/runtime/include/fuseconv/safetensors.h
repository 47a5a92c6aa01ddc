// Reads and writes tensor files in the safetensors format (github.com/huggingface/safetensors, README, "Format").
#pragma once

#include <filesystem>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

// Both functions throw Error: of kind refused if the file is damaged, and of kind file if it cannot be read or written.
NamedTensors load_tensors(const std::filesystem::path& path);
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace fuseconv::runtime
