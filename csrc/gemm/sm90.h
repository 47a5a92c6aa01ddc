// Backend `sm90`: one fused kernel for Hopper, f16 and bf16, every activation, bias and residual.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::sm90 {

// Tiles by rows and columns. The warpgroups of a block take turns at them, or, where so named, multiply one together.
inline constexpr const char* kShapes[] = {"128x128", "128x160",          "128x176",
                                          "64x128",  "128x192 together", "64x64 together"};

// How to launch: which tile, and how blocks are placed.
struct Configuration {
  int shape;                 // index into kShapes
  int cluster_m, cluster_n;  // 1 or 2 blocks that share copies of w, of x
  int strip;                 // rows of cluster tiles that are walked together
  bool early;                // let the grid start while the one before it ends (programmatic dependent launch)
};

// A configuration as one number, and back: what a timing cache keeps.
int encode(const Configuration& configuration);
Configuration decode(int code);
std::string to_string(const Configuration& configuration);

// What is worth timing for a problem, the best guess first: by waves of tiles, and per step along k by the larger of
// the tensor cores' time and that of copying the tiles into shared memory.
std::vector<Configuration> configurations(const Problem& problem);

// Why this backend cannot do it, or an empty string. Reads the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error when refused or when CUDA fails.
void run(const Problem& problem, const Configuration& configuration);

}  // namespace fuseconv::linear::sm90
