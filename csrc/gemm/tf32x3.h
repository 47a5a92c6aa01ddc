// Backend `tf32x3`: one fused f32 kernel on Hopper's TF32 Tensor Cores. It supports every activation, bias, residual,
// gated layers, and convolutions without groups. Its results are as accurate as f32 arithmetic.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::tf32x3 {

// Tile sizes: rows of x by rows of w.
inline constexpr const char* kShapes[] = {"128x128", "128x64", "64x64"};

// Returns the indices into kShapes of all tile sizes, fastest expected first. The expectation is based on the number of
// waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Returns the reason for which this backend does not support the problem, or an empty string if the backend supports
// it. Queries the current device.
std::string refuses(const Problem& problem);

// Launches the kernel on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::tf32x3
