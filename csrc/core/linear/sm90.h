// Backend `sm90`: one fused kernel for Hopper, f16 and bf16, every activation, bias and residual.
#pragma once

#include <string>

#include "core/linear/problem.h"

namespace fuseconv::linear::sm90 {

// How to launch: which tile, and how blocks are placed.
struct Configuration {
  int shape;                 // of a tile, rows by columns: 0: 128x128, 1: 128x176, 2: 64x128, 3: 64x64, 4: 128x160
  int cluster_m, cluster_n;  // 1 or 2 blocks that share copies of w, of x
  int strip;                 // rows of cluster tiles that are walked together
  bool early;                // let the grid start while the one before it ends (programmatic dependent launch)
};

// A configuration as one number, and back: what a timing cache keeps.
int encode(const Configuration& configuration);
Configuration decode(int code);
std::string to_string(const Configuration& configuration);

// Why this backend cannot do it, or an empty string. Reads the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error when refused or when CUDA fails.
void run(const Problem& problem, const Configuration& configuration);

}  // namespace fuseconv::linear::sm90
