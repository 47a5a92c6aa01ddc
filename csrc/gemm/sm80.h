// Backend `sm80`: one fused kernel for Ampere and what came after, f16 and bf16, every activation, bias, residual,
// gated.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::sm80 {

// Tiles by rows of x and of w.
inline constexpr const char* kShapes[] = {"128x256", "128x128", "64x64"};

// The indices of the tiles that the device has memory for, the best guess first: by waves of tiles.
std::vector<int> shapes(const Problem& problem);

// Why this backend cannot do it, or an empty string. Reads the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error when refused or when CUDA fails.
void run(const Problem& problem, int shape);

}  // namespace fuseconv::linear::sm80
