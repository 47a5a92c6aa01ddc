// Backend `tf32x3`: f32 on Hopper's Tensor Cores, with every activation, bias, residual, gated. Its errors are as small
// as those of f32 arithmetic.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::tf32x3 {

// Tile sizes: rows of x by rows of w.
inline constexpr const char* kShapes[] = {"128x128", "128x64", "64x64"};

// Returns the indices of the tiles, best guess first. The guess is based on the number of waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Returns why this backend does not support the problem, or an empty string. Queries the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::tf32x3
