// CUDA graphs of a loaded model, as in fuseconv/runtime/cuda_graphs.py: captured for those shapes with which they pay.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Whether calls are captured and replayed. `automatic` does so for aoti and torchscript on CUDA, for shapes that recur
// often enough to pay and whose replay is faster than a direct call. With `on`, every shape is captured at its first
// call, and a call that cannot be captured is an error.
enum class Capture { off, automatic, on };

// How a model is loaded.
struct Options {
  Capture cuda_graphs = Capture::automatic;
  // The maximum number of bytes that the graphs hold. By default a tenth of the free memory.
  std::optional<int64_t> cuda_graphs_memory = std::nullopt;
};

// The sizes of a call's inputs.
using Shapes = std::vector<std::vector<int64_t>>;

// The captured graphs of a model.
struct CudaGraphs {
  std::vector<Shapes> shapes;  // padded to their bucket; one per graph, in the order of capture
  int64_t memory = 0;          // GPU memory that they hold, in bytes: inputs, outputs and intermediate values
  std::string reason;          // why other calls are not captured; empty if they are, or will be when that pays
};

}  // namespace fuseconv::runtime
