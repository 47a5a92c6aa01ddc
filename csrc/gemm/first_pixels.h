// Describes to a kernel where the windows of a convolution start. The kernel's x is an implicit matrix (problem.h).
#pragma once

#include <cstdint>

#include "gemm/problem.h"

namespace fuseconv::linear {

// Divides by a number that is known when the kernel is launched. The quotient is the high half of the product of the
// dividend and 2^64 / divisor, rounded up.
struct Divisor {
  uint64_t inverse;  // 0 stands for 2^64, which is the inverse of 1
  int value;

  static Divisor of(int value) { return {value == 1 ? 0 : ~uint64_t{0} / static_cast<uint64_t>(value) + 1, value}; }
};

// The first pixels of the windows.
struct FirstPixels {
  Divisor y_width, y_height;
  int stride_y, stride_x, top, left, dilation_y, dilation_x;

  static FirstPixels of(const Windows& w) {
    return {Divisor::of(w.y_width),
            Divisor::of(w.y_height),
            w.stride_y,
            w.stride_x,
            w.top,
            w.left,
            w.dilation_y,
            w.dilation_x};
  }
};

}  // namespace fuseconv::linear
