// The arguments of linear_kernel other than its tensor maps.
#pragma once

#include <cstdint>

#include "gemm/first_pixels.h"

namespace fuseconv::linear::sm90 {

// The parameters of a piecewise activation: hard_swish, hard_sigmoid, relu6, relu_squared or leaky_relu. hard_sigmoid
// and relu6 are min(max(scale x + shift, 0), high). hard_swish is x times this value, and relu_squared its square.
// leaky_relu is x where x is not negative, and scale x elsewhere.
struct Pieces {
  float scale, shift, high;
  enum { clipped, clipped_times_x, clipped_squared, two } form;
};

struct Arguments {
  const void* bias;
  void* y;           // only if TMA does not write y
  int64_t y_stride;  // in elements
  bool residual_first, is_convolution, has_groups;
  bool has_rows;  // of a convolution: as in tensor_map.h
  int m, n;
  uint32_t x_bytes;  // the bytes of a tile of x; fewer than a full tile if y has fewer rows
  int steps;         // the number of steps of 128 bytes along k; each position of a convolution's kernel starts one
  int channels;      // the columns of x at one position of a convolution's kernel; of a matrix, all columns
  int kernel_width;
  FirstPixels first;         // of a convolution
  Divisor group_tiles;       // the number of block tiles along the columns of a group; one group without groups
  int group_columns;         // the columns of y of a group
  int cluster_m, cluster_n;  // blocks per cluster along the rows and the columns of y
  int tiles;                 // the number of cluster tiles
  // Rasterization: cluster tiles are visited column by column, down the rows of a strip, then strip by strip, so that w
  // stays in L2.
  Divisor strip;        // the number of tiles per whole strip
  Divisor height;       // the rows of tiles per whole strip
  Divisor last_height;  // the rows of tiles in the last strip
  int strips;
  Pieces pieces;
};

}  // namespace fuseconv::linear::sm90
