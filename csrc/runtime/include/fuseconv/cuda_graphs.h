// CUDA graphs of a loaded model, as in fuseconv/runtime/cuda_graphs.py. A shape is captured if its graph pays off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Selects whether calls are captured and replayed. `automatic` captures the targets aoti and torchscript on CUDA, for
// shapes that recur often enough to pay off and whose replay is faster than a direct call. `on` captures every shape at
// its first call, and a call that cannot be captured is an error.
enum class Capture { off, automatic, on };

// Options for loading a model.
struct Options {
  Capture cuda_graphs = Capture::automatic;
  // The maximum number of bytes that the graphs may hold. The default is a tenth of the free memory.
  std::optional<int64_t> cuda_graphs_memory = std::nullopt;
};

// The sizes of a call's inputs.
using Shapes = std::vector<std::vector<int64_t>>;

// The captured graphs of a model.
struct CudaGraphs {
  std::vector<Shapes> shapes;  // one entry per graph, padded to its bucket, in the order of capture
  int64_t memory = 0;          // the GPU memory that the graphs hold, in bytes: inputs, outputs and intermediate values
  // why other calls are not captured; empty if they are captured, or will be when that pays off
  std::string reason;
};

}  // namespace fuseconv::runtime
