// The softmax of attention over tiles of keys, of which a warp holds the scores as PTX's mma.m16n8k16 and wgmma return
// them (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include <cmath>

#include "arch/math.cuh"

namespace fuseconv::cuda {

// The softmax of two rows over the tiles so far, in each of the four lanes that share the rows.
class OnlineSoftmax {
 public:
  // Replaces the scores of a tile by weights, e^(scale (score - the largest so far)). Returns in `old` the factors of
  // the weights of the tiles before. `at(row, i)` refers to one of the `kScores` scores that this thread has of a row;
  // `scale` is positive.
  //
  // The exponent of 2 is one fused multiply-add, factor score - factor largest. The rounding of the second product
  // scales all weights of a tile alike, and the division by their sum removes it. But if a mask has -1e30 in a whole
  // row, the rounding is beyond the range of exponents, and with the lowest number of bf16 the product overflows. From
  // 2^28 on, the differences are therefore computed first.
  template <int kScores, class At>
  __device__ __forceinline__ void weigh(const At& at, float scale, float (&old)[2]) {
    constexpr float kLog2E = 1.4426950408889634f, kInexact = 0x1p28f;
    const float factor = scale * kLog2E;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = largest_[row];
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        top = fmaxf(top, at(row, i));
      }
      top = over_row(top, [](float x, float z) { return fmaxf(x, z); });
      const float pivot = top == -INFINITY ? 0.0f : top;  // so that the weight of -inf is 0 and not NaN
      float shift = pivot * factor;
      if (fabsf(shift) >= kInexact) {
        shift = 0.0f;
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
          at(row, i) -= pivot;
        }
      }
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        float& score = at(row, i);
        score = arch::exp2_approx(score * factor - shift);
        sum += score;
      }
      old[row] = arch::exp2_approx((largest_[row] - pivot) * factor);
      total_[row] = total_[row] * old[row] + sum;
      largest_[row] = top;
    }
  }

  // Returns the factor by which a row of weighted sums becomes a row of the result, 0 if all scores were -inf.
  __device__ __forceinline__ float share(int row) const {
    const float sum = over_row(total_[row], [](float x, float z) { return x + z; });
    return sum == 0.0f ? 0.0f : 1.0f / sum;
  }

 private:
  template <class Combine>
  static __device__ __forceinline__ float over_row(float x, Combine combine) {
    x = combine(x, __shfl_xor_sync(~0u, x, 1));
    return combine(x, __shfl_xor_sync(~0u, x, 2));
  }

  float largest_[2] = {-INFINITY, -INFINITY}, total_[2] = {0, 0};
};

}  // namespace fuseconv::cuda
