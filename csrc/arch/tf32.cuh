// Splits f32 numbers into sums of two TF32 numbers, for products of f32 on the Tensor Cores.
//
// TF32 has 11 significant bits. Each factor is approximated by the sum of two TF32 numbers, x = x1 + x2, with a
// relative error below 2^-22. Three products are computed for each pair of factors: x2 w1, x1 w2, x1 w1. The fourth, x2
// w2, is smaller than the rounding error of f32. The Tensor Cores truncate when they add, and all truncations of a long
// sum have the same sign. Therefore the Tensor Cores add only a few products, the small ones first, and these sums are
// added in f32 outside the Tensor Cores (Ootomo and Yokota, 2022). The second part of an infinity is NaN, so a sum that
// is not finite is recomputed in f32, product by product.
#pragma once

#include <cstdint>

namespace fuseconv::arch::tf32 {

inline constexpr uint32_t kHalf = 0x1000, kKept = 0xffffe000;  // half of the last bit of TF32; the bits that TF32 keeps

// Returns x1, the TF32 number nearest to x. (Rounding turns some NaNs into zero; x2 is then NaN.)
__device__ __forceinline__ uint32_t first_part(float x) { return (__float_as_uint(x) + kHalf) & kKept; }

// Returns x2 = x - x1, which is exact. The Tensor Cores ignore the bits of x2 that TF32 does not have.
__device__ __forceinline__ uint32_t second_part(float x, uint32_t first) {
  return __float_as_uint(x - __uint_as_float(first));
}

// Returns w2 = w - w1, where w1 is w without the bits that the Tensor Cores ignore. The difference always has the sign
// of w, so w2 must be rounded and not truncated.
__device__ __forceinline__ float low_part(float w) {
  return __uint_as_float(__float_as_uint(w - __uint_as_float(__float_as_uint(w) & kKept)) + kHalf);
}

}  // namespace fuseconv::arch::tf32
