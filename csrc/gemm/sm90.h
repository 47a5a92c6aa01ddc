// Backend `sm90`: one fused kernel for Hopper, f16 and bf16, every activation, bias and residual.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::sm90 {

// Tile sizes by rows and columns. The warpgroups of a block work in ping-pong or, where the name says so, cooperatively
// on one tile.
inline constexpr const char* kShapes[] = {"128x128", "128x160",          "128x176",
                                          "64x128",  "128x192 together", "64x64 together"};

// A launch configuration: the tile, and the placement of blocks.
struct Configuration {
  int shape;                 // index into kShapes
  int cluster_m, cluster_n;  // 1 or 2 blocks that share multicast copies of w, of x
  int strip;                 // rasterization: rows of cluster tiles that are walked together
  bool early;                // PDL (programmatic dependent launch): may start before the preceding grid ends
};

// Converts a configuration to and from one number, for the timing of one.
int encode(const Configuration& configuration);
Configuration decode(int code);
std::string to_string(const Configuration& configuration);

// The configurations worth timing for a problem, best guess first. The guess is the number of waves of tiles, and per
// step along k the larger of the Tensor Core time and the time to copy the tiles to shared memory.
std::vector<Configuration> configurations(const Problem& problem);

// Returns why this backend does not support the problem, or an empty string. Queries the current device.
std::string refuses(const Problem& problem);

// Launches on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, const Configuration& configuration);

}  // namespace fuseconv::linear::sm90
