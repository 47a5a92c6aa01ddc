// CUDA graphs of a loaded model, as fuseconv/cuda_graphs.py has them: captured for each shape when it is first called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Whether calls are captured and replayed. `automatic` does so for aoti and torchscript on CUDA, and runs what cannot
// be captured without; with `on` that is an error.
enum class Capture { off, automatic, on };

// The sizes of a call's inputs.
using Shapes = std::vector<std::vector<int64_t>>;

// What of a model is replayed.
struct CudaGraphs {
  std::vector<Shapes> shapes;  // padded to their bucket; one a graph, the one used longest ago first
  int64_t memory = 0;          // bytes of the GPU that they hold: inputs, outputs and the values between
  std::string reason;          // why other calls run without a graph; empty if they are captured
};

}  // namespace fuseconv::runtime
