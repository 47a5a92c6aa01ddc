// The options and the status of a loaded model's CUDA graphs, as in fuseconv/runtime/cuda_graphs.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Selects whether calls are captured in CUDA graphs and replayed. `off` captures none. `automatic` captures the targets
// aoti and torchscript on CUDA, for shapes that recur often enough to pay off and whose replay is faster than a direct
// call. `on` captures every shape at its first call, and a call that cannot be captured is an error.
enum class Capture { off, automatic, on };

// Options for loading a model.
struct Options {
  Capture cuda_graphs = Capture::automatic;
  // The maximum number of bytes that the graphs may hold. If empty, a tenth of the free memory.
  std::optional<int64_t> cuda_graphs_memory = std::nullopt;
};

// The sizes of a call's inputs.
using Shapes = std::vector<std::vector<int64_t>>;

// The captured graphs of a model.
struct CudaGraphs {
  std::vector<Shapes> shapes;  // one entry per graph, padded to its bucket, in the order of capture
  int64_t memory = 0;          // the GPU memory that the graphs hold, in bytes: inputs, outputs and intermediate values
  // why no other shapes are captured; empty if other shapes are captured once their graphs pay off
  std::string reason;
};

}  // namespace fuseconv::runtime
