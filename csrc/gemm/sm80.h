// Backend `sm80`: one fused kernel for Ampere and later GPUs. It supports f16 and bf16, every activation, bias,
// residual, and gated layers.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::sm80 {

// Tile sizes: rows of x by rows of w.
inline constexpr const char* kShapes[] = {"128x256", "128x128", "64x64"};

// Returns the indices into kShapes of the tile sizes for which the device has enough shared memory, fastest expected
// first. The expectation is based on the number of waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Returns the reason for which this backend does not support the problem, or an empty string if the backend supports
// it. Queries the current device.
std::string refuses(const Problem& problem);

// Launches the kernel on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::sm80
