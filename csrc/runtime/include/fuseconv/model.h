// A loaded bundle. Before any code or data is loaded, Model::load checks the bundle's files, whether this machine can
// run them, and the permissions of the libraries.
//
//   fuseconv::runtime::Model model = fuseconv::runtime::Model::load("model.fuseconv", "onnx");
//   fuseconv::runtime::NamedTensors outputs = model({{"x", x}});
//
// For a bundle of several methods:
//
//   const auto methods = fuseconv::runtime::Model::load_methods("llama.fuseconv");
//   fuseconv::runtime::NamedTensors outputs = methods.at("prefill")(inputs);
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"
#include "fuseconv/error.h"
#include "fuseconv/safetensors.h"
#include "fuseconv/state.h"

namespace fuseconv::runtime {

class Runner;
class SharedWeights;
struct Manifest;

class Model {
 public:
  // Loads a bundle. `target` is aoti, torchscript, onnx-plugin or onnx. If it is empty, selects the target that was
  // measured fastest at the conversion if this machine has the same device, and otherwise the first of these targets
  // that the bundle contains. Throws Error as fuseconv.load does. Checks the hashes of the manifest, but no signature:
  // docs/provenance.md says how to check it before.
  static Model load(const std::filesystem::path& bundle, const std::string& target = "", const Options& options = {});

  // Loads all methods of a bundle, by their names. The methods share one copy of the bundle's weights, on the CPU and
  // on a GPU. The arguments and errors are those of `load`.
  static std::map<std::string, Model> load_methods(const std::filesystem::path& bundle, const std::string& target = "",
                                                   const Options& options = {});

  // Checks the tensors against the contract and returns the outputs by name. Throws Error of kind contract if the call
  // violates the contract, and of kind upstream if the artifact fails.
  NamedTensors operator()(const NamedTensors& inputs) const;

  // Returns the initial state in the memory of the model's device. `sizes` gives the size of each symbolic dim in the
  // state. Throws Error of kind usage if a size is missing.
  State zero_state(const std::map<std::string, int64_t>& sizes) const;

  // Copies a state, given by the names of the inputs, into the memory of the model's device.
  State state(NamedTensors tensors) const;

  // Computes the outputs and stores the next state in `state`, which is not copied through host memory: a state may
  // come from any method of the bundle. `inputs` are the other inputs. The result has the outputs that are not of the
  // state. Throws as a call does; then the state is undefined.
  NamedTensors advance(State& state, const NamedTensors& inputs) const;

  // Returns the CUDA graphs captured so far.
  CudaGraphs cuda_graphs() const;

  const Contract& contract() const { return contract_; }
  const std::string& target() const { return target_; }

 private:
  static Model load(const std::filesystem::path& folder, const Manifest& manifest, const std::string& target,
                    const Options& options, const std::shared_ptr<SharedWeights>& weights);

  // Calls `compute`, and describes its errors as those of a call with these inputs.
  template <typename Compute>
  std::vector<Tensor> computed(const std::vector<const Tensor*>& inputs, const Compute& compute) const;
  // Returns the outputs by name, without those in `left_out`.
  NamedTensors named(std::vector<Tensor> outputs, const std::vector<StatePlace>& left_out) const;

  Contract contract_;
  std::string target_;
  std::string ungraphed_;  // why the model runs without CUDA graphs, or empty
  std::shared_ptr<Runner> runner_;
};

}  // namespace fuseconv::runtime
