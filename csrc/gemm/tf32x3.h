// Backend `tf32x3`: f32 on the tensor cores of Hopper, every activation, bias, residual, gated. The errors are f32's.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::tf32x3 {

// Tiles by rows of x and of w.
inline constexpr const char* kShapes[] = {"128x128", "128x64", "64x64"};

// The indices of the tiles, the best guess first: by waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Why this backend cannot do it, or an empty string. Reads the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error when refused or when CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::tf32x3
