// What linear_kernel reads besides its tensor maps.
#pragma once

#include <cstdint>

namespace fuseconv::linear::sm90 {

// Division by a number known at launch: the high half of a product with 2^64 / divisor, rounded up.
struct Divisor {
  uint64_t inverse;  // 0 stands for 2^64: a divisor of 1
  int value;

  static Divisor of(int value) { return {value == 1 ? 0 : ~uint64_t{0} / static_cast<uint64_t>(value) + 1, value}; }
};

struct Arguments {
  const void* bias;
  const void* residual;
  int64_t residual_stride;
  int m, n;
  uint32_t x_bytes;          // of a tile of x: fewer rows than the tile where y has fewer
  int steps;                 // of 64 along k
  int cluster_m, cluster_n;  // blocks of a cluster along the rows and the columns of y
  int tiles;                 // cluster tiles
  // Cluster tiles are walked down the rows of a strip, column after column, strip after strip: w stays in L2.
  Divisor strip;        // tiles of a whole strip
  Divisor height;       // rows of tiles of a whole strip
  Divisor last_height;  // and of the last strip
  int strips;
};

}  // namespace fuseconv::linear::sm90
