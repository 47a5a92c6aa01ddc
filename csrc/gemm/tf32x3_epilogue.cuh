// The epilogue of tf32x3_kernel.cuh: computes y from the sums of products.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "gemm/windows.cuh"

namespace fuseconv::linear::tf32x3 {

struct Arguments {
  const float *x, *weight, *bias, *residual;
  float* y;
  int64_t x_stride, weight_stride, residual_stride, y_stride;
  int m, n;
  int positions, channels;        // of a convolution's kernel; a matrix has one position, and its columns are channels
  bool is_convolution, has_rows;  // has_rows: as in tensor_map.h
  Windows windows;                // of a convolution, and so is `first`
  FirstPixels first;
  int rows, columns;  // the number of tiles along the rows and columns
  int steps;          // the number of steps of 32 channels along k, which is even
  Activation activation;
  bool pairs;  // whether y and residual can be accessed 8 bytes at a time
  bool residual_first;
};

// Returns the channels of x at a position of a window, or null if they are zeros outside the image.
__device__ __forceinline__ const float* channels_at(const Arguments& a, const arch::sm90::Pixel& first, int position) {
  const Windows& w = a.windows;
  const int x = first.x + position % w.kernel_width * w.dilation_x;
  const int y = first.y + position / w.kernel_width * w.dilation_y;
  const bool inside = x >= 0 && x < w.width && y >= 0 && y < w.height;
  return inside ? a.x + first.image * w.image_stride + y * w.row_stride + x * w.pixel_stride : nullptr;
}

// Computes the product of a row of x and a row of w in f32.
__device__ __forceinline__ float product(const Arguments& a, int row, int column) {
  const arch::sm90::Pixel first = a.is_convolution ? first_pixel(a.first, row) : arch::sm90::Pixel{};
  float sum = 0.0f;
#pragma unroll 1
  for (int position = 0; position < a.positions; ++position) {
    const float* const x = a.is_convolution ? channels_at(a, first, position) : a.x + row * a.x_stride;
    const float* const w = a.weight + column * a.weight_stride + position * a.channels;
#pragma unroll 1
    for (int channel = 0; channel < a.channels && !isnan(sum); ++channel) {
      sum = fmaf(x == nullptr ? 0.0f : x[channel], w[channel], sum);
    }
  }
  return sum;
}

// Loads the bias of a thread's pairs of columns, which are 8 apart, or 0 without a bias.
template <int kPairs>
__device__ __forceinline__ void load_bias(float2 (&bias)[kPairs], const Arguments& a, int column, int first) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int c = column + i * 8;
    const float* at = a.bias + first + c;
    bias[i] = {a.bias != nullptr && c < a.n ? at[0] : 0.0f, a.bias != nullptr && c + 1 < a.n ? at[1] : 0.0f};
  }
}

// Writes a thread's elements of 64 columns of y: 2 of every 8 columns, in rows `row` and `row` + 8. `up` is the other
// factor of a gated layer.
template <bool kGated, class Act>
__device__ __forceinline__ void finish(const Arguments& a, const float* sum, const float* up, const float2* bias,
                                       const float2* up_bias, int row, int column, Act act) {
  constexpr int kPairs = kGated ? 4 : 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + half * 8;
    const bool inside = r < a.m;
    float* to = a.y + r * a.y_stride + column;
    const float* residual = a.residual == nullptr ? nullptr : a.residual + r * a.residual_stride + column;
    float2 add[kPairs] = {};
    if (residual != nullptr && inside) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = column + i * 8;
        if (a.pairs && c + 1 < a.n) {
          add[i] = *reinterpret_cast<const float2*>(residual + i * 8);
        } else {
          add[i] = {c < a.n ? residual[i * 8] : 0.0f, c + 1 < a.n ? residual[i * 8 + 1] : 0.0f};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = i * 4 + half * 2, c = column + i * 8;
      // -0 takes the place of a missing addend, because adding +0 would turn -0 into +0.
      float2 y{sum[at], sum[at + 1]};
      y = a.bias == nullptr ? y : float2{y.x + bias[i].x, y.y + bias[i].y};
      const float2 sum_of_both{y.x + add[i].x, y.y + add[i].y};
      y = residual != nullptr && a.residual_first ? sum_of_both : y;
      y = {act(y.x), act(y.y)};
      if constexpr (kGated) {
        const float2 u{up[at], up[at + 1]};
        y.x *= a.bias == nullptr ? u.x : u.x + up_bias[i].x;
        y.y *= a.bias == nullptr ? u.y : u.y + up_bias[i].y;
      }
      y = residual == nullptr || a.residual_first ? y : float2{y.x + add[i].x, y.y + add[i].y};
      if (inside && a.pairs && c + 1 < a.n) {
        *reinterpret_cast<float2*>(to + i * 8) = y;
      } else if (inside && c < a.n) {
        to[i * 8] = y.x;
        if (c + 1 < a.n) {
          to[i * 8 + 1] = y.y;
        }
      }
    }
  }
}

}  // namespace fuseconv::linear::tf32x3
