// Runs a loaded artifact. Inputs and outputs are dense host tensors; the runner copies the inputs to the artifact's
// device and the outputs back to the host.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device_state.h"
#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) = 0;

  // Takes over the tensors of a state. These functions keep it in host memory, unless a runner overrides them.
  virtual std::unique_ptr<DeviceState> hold(NamedTensors tensors) const;
  // Returns whether `state` has the form in which this runner holds states.
  virtual bool holds(const DeviceState& state) const;
  // Computes the outputs and stores the next state in `state`, which this runner holds. Ignores the inputs of the
  // state, and leaves its outputs empty.
  virtual std::vector<Tensor> advance(const Contract& contract, DeviceState& state, std::vector<const Tensor*> inputs);

  virtual CudaGraphs cuda_graphs() { return {}; }
};

// These functions return properties of this machine, in the same format as in a manifest's environment.
std::string torch_version();
std::string torch_cpu();  // torch's name for the CPU's instruction set
void load_torch_library(const std::filesystem::path& path);

// The weights of a bundle that LibTorch's artifacts share, see weights.h.
class SharedWeights;
std::shared_ptr<SharedWeights> share_weights();
std::unique_ptr<Runner> torchscript(const std::filesystem::path& artifact, const Contract& contract,
                                    const Options& options, const std::shared_ptr<SharedWeights>& weights);
std::unique_ptr<Runner> aoti(const std::filesystem::path& artifact, const Contract& contract, const Options& options,
                             const std::shared_ptr<SharedWeights>& weights);

// ONNX Runtime is loaded on first use, from libonnxruntime.so or from the path in FUSECONV_ONNXRUNTIME.
std::string onnxruntime_version();
// Loads an ONNX artifact. `library` is the path of fuseconv's op library for ONNX Runtime, or empty if the artifact
// uses no custom ops.
std::unique_ptr<Runner> onnx(const std::filesystem::path& artifact, const std::filesystem::path& library,
                             const Contract& contract);

}  // namespace fuseconv::runtime
