// CUDA graphs of a loaded model, as in fuseconv/runtime/cuda_graphs.py: captured on the first call of each shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Whether calls are captured and replayed. `automatic` does so for aoti and torchscript on CUDA, and runs calls that
// cannot be captured without a graph. With `on` that is an error.
enum class Capture { off, automatic, on };

// The sizes of a call's inputs.
using Shapes = std::vector<std::vector<int64_t>>;

// The captured graphs of a model.
struct CudaGraphs {
  std::vector<Shapes> shapes;  // padded to their bucket; one per graph, least recently used first
  int64_t memory = 0;          // GPU memory that they hold, in bytes: inputs, outputs and intermediate values
  std::string reason;          // why other calls run without a graph; empty if they are captured
};

}  // namespace fuseconv::runtime
