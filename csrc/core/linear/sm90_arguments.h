// What linear_kernel reads besides its tensor maps.
#pragma once

#include <cstdint>

namespace fuseconv::linear::sm90 {

struct Arguments {
  const void* bias;
  const void* residual;
  int64_t residual_stride;
  int m, n;
  int steps;                 // tiles of k
  int cluster_m, cluster_n;  // blocks of a cluster along the rows and the columns of y
  int tiles_m, tiles_n;      // cluster tiles along the rows and the columns of y
  int group;                 // rows of cluster tiles that are walked together, for the reuse of w in L2
  int lead;                  // tiles of k by which the first warpgroup starts ahead of the second
};

}  // namespace fuseconv::linear::sm90
