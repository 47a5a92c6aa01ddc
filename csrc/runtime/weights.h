// Loads the weights of an artifact that are stored outside the artifact, elsewhere in its bundle, as fuseconv/weights
// describes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace fuseconv::runtime {

using Weights = std::unordered_map<std::string, at::Tensor>;

// The stored tensors of one bundle that were loaded so far. The artifacts that are loaded with the same object share
// one mapping of each file of weights, and on a GPU one copy of each tensor.
class SharedWeights {
 public:
  // Returns the tensors of a file of weights by their keys. Maps the file at the first call for its path.
  const Weights& stored(const std::filesystem::path& file);
  // Returns a stored tensor on a device. The result shares its memory with earlier results for the same key, but is a
  // tensor of its own, so that an artifact can release it.
  at::Tensor placed(const std::string& key, const at::Tensor& stored, const std::string& device);

 private:
  std::map<std::filesystem::path, Weights> files_;
  Weights placed_;  // keys are unique in a bundle, and a bundle has one device
};

// Returns the weights by their names in the artifact, or std::nullopt if the artifact itself contains its weights. On
// the CPU, the tensors are views of the memory-mapped file, which all processes share. Throws an Error of kind
// `refused` if a file is missing or damaged.
std::optional<Weights> weights_of_artifact(const std::filesystem::path& artifact, const std::string& device,
                                           SharedWeights& shared);

}  // namespace fuseconv::runtime
