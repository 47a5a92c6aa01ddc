// Backend `sm90`: one fused kernel for Hopper. It supports f16, bf16, f32 where TF32 is allowed, the activations of
// sm90_kernel_table.h, bias, residual, and gated layers.
#pragma once

#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::sm90 {

// Tile sizes: rows by columns. The warpgroups of a block work in ping-pong on separate tiles, or cooperatively on one
// tile if the name contains "together". Files of tactics contain these names.
inline constexpr const char* kShapes[] = {"128x128",          "128x160",        "128x176", "64x128",
                                          "128x192 together", "64x64 together", "256x64"};

// A launch configuration: the tile, and the placement of blocks.
struct Configuration {
  int shape;                 // the index into kShapes
  int cluster_m, cluster_n;  // the number of blocks, 1 or 2, that share multicast copies of w and of x
  int strip;                 // rasterization: the rows of cluster tiles that are visited together
  bool early;                // programmatic dependent launch (PDL): may start before the preceding grid ends
};

// Convert a configuration to one number and back, so that a Choice can store it.
int encode(const Configuration& configuration);
Configuration decode(int code);
std::string to_string(const Configuration& configuration);

// Returns the configurations worth timing for a problem, fastest expected first. The expectation is based on the number
// of waves of tiles and, per step along k, on the larger of the Tensor Core time and the time to copy the tiles to
// shared memory.
std::vector<Configuration> configurations(const Problem& problem);

// Returns the reason for which this backend does not support the problem, or an empty string if the backend supports
// it. Queries the current device.
std::string refuses(const Problem& problem);

// Launches the kernel on the problem's stream. Throws std::runtime_error if the problem is not supported or CUDA fails.
void run(const Problem& problem, const Configuration& configuration);

}  // namespace fuseconv::linear::sm90
