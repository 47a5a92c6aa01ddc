// A loaded artifact: dense tensors in, dense tensors out, on the host's side; a runner copies to its device and back.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fuseconv/contract.h"
#include "fuseconv/cuda_graphs.h"

namespace fuseconv::runtime {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) = 0;
  virtual CudaGraphs cuda_graphs() { return {}; }
};

// What this machine is, in the words of a manifest's environment.
std::string torch_version();
std::string torch_cpu();  // torch's name of the processor's instruction set
void load_torch_library(const std::filesystem::path& path);
std::unique_ptr<Runner> torchscript(const std::filesystem::path& artifact, const Contract& contract, Capture capture);
std::unique_ptr<Runner> aoti(const std::filesystem::path& artifact, const Contract& contract, Capture capture);

// ONNX Runtime is loaded when it is first asked for: libonnxruntime.so, or what FUSECONV_ONNXRUNTIME names.
std::string onnxruntime_version();
// `library` is that of our ops, or empty.
std::unique_ptr<Runner> onnx(const std::filesystem::path& artifact, const std::filesystem::path& library,
                             const Contract& contract);

}  // namespace fuseconv::runtime
