// A loaded bundle. Before any code or data is loaded, Model::load checks the bundle's files, whether this machine can
// run them, and the permissions of the libraries.
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
  // Loads a bundle. `target` is aoti, torchscript, onnx-plugin or onnx. If it is empty, selects the target that was
  // measured fastest at the conversion if this machine has the same device, and otherwise the first of these targets
  // that the bundle contains. Throws Error as fuseconv.load does.
  static Model load(const std::filesystem::path& bundle, const std::string& target = "", const Options& options = {});

  // Checks the tensors against the contract and returns the outputs by name. Throws Error of kind contract if the call
  // violates the contract, and of kind upstream if the artifact fails.
  NamedTensors operator()(const NamedTensors& inputs) const;

  // Returns the CUDA graphs captured so far.
  CudaGraphs cuda_graphs() const;

  const Contract& contract() const { return contract_; }
  const std::string& target() const { return target_; }

 private:
  Contract contract_;
  std::string target_;
  std::string ungraphed_;  // why the model runs without CUDA graphs, or empty
  std::shared_ptr<Runner> runner_;
};

}  // namespace fuseconv::runtime
