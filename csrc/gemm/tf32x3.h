// Backend `tf32x3`: f32 on the Tensor Cores of Hopper, every activation, bias, residual, gated. The errors are those of
// f32.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::tf32x3 {

// Tile sizes by rows of x and of w.
inline constexpr const char* kShapes[] = {"128x128", "128x64", "64x64"};

// The indices of the tiles, best guess first: by waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Returns why this backend does not support the problem, or an empty string. Queries the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::tf32x3
