// A loaded bundle. Its files, this machine and the permissions of the libraries are checked before anything is loaded.
//
//   fuseconv::runtime::Model model = fuseconv::runtime::Model::load("model.fuseconv", "onnx");
//   fuseconv::runtime::NamedTensors outputs = model({{"x", x}});
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"
#include "fuseconv/error.h"
#include "fuseconv/safetensors.h"

namespace fuseconv::runtime {

class Runner;

class Model {
 public:
  // `target` is aoti, torchscript, onnx-plugin or onnx. Empty selects the one that was measured fastest at the
  // conversion, if this is the same device, else the first of these in the bundle. Throws Error as fuseconv.load does.
  static Model load(const std::filesystem::path& bundle, const std::string& target = "", const Options& options = {});

  // Checks the tensors against the contract and computes the outputs, by name. Throws Error: of kind contract if the
  // call violates it, of kind upstream if the artifact fails.
  NamedTensors operator()(const NamedTensors& inputs) const;

  // The CUDA graphs captured so far.
  CudaGraphs cuda_graphs() const;

  const Contract& contract() const { return contract_; }
  const std::string& target() const { return target_; }

 private:
  Contract contract_;
  std::string target_;
  std::string ungraphed_;  // why there are no CUDA graphs, if there are none
  std::shared_ptr<Runner> runner_;
};

}  // namespace fuseconv::runtime
