// Walks the windows of a convolution, whose x is an implicit matrix (problem.h).
#pragma once

#include "arch/sm90.cuh"
#include "gemm/first_pixels.h"

namespace fuseconv::linear {

__device__ __forceinline__ int divide(int number, const Divisor& by) {
  return by.inverse == 0 ? number : static_cast<int>(__umul64hi(static_cast<uint64_t>(number), by.inverse));
}

// Returns the first pixel of the window of a row of x. It may be outside the image.
__device__ __forceinline__ arch::sm90::Pixel first_pixel(const FirstPixels& f, int row) {
  const int line = divide(row, f.y_width), image = divide(line, f.y_height);
  return {(row - line * f.y_width.value) * f.stride_x - f.left, (line - image * f.y_height.value) * f.stride_y - f.top,
          image};
}

// A step along k. The columns of a convolution are the positions (x, y) of its kernel, and the channels at each
// position. A matrix has one position.
struct Step {
  int channel = 0, position = 0, x = 0, y = 0;

  __device__ __forceinline__ void advance(int depth, int channels, int kernel_width) {
    channel += depth;
    if (channel >= channels) {
      channel = 0;
      ++position;
      if (++x == kernel_width) {
        x = 0;
        ++y;
      }
    }
  }
};

}  // namespace fuseconv::linear
