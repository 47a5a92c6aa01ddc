// The mask of the scores of the kernel of attention_sm90.cuh, in the registers of a consumer.
#pragma once

#include "arch/pairs.cuh"
#include "kernels/attention_sm90_work.cuh"

namespace fuseconv::cuda::attention_sm90_kernel {

// The mask of this thread's scores of a tile, in pairs of columns. Elements outside the mask may have any value.
template <class T, int kEights>
__device__ __forceinline__ void load_mask(const Arguments& a, const T* mask, int row, int column,
                                          uint32_t (&pairs)[kEights][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* const from = mask + min(row + 8 * half, a.queries - 1) * a.mask_row;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int own = column + 8 * j;
      if (a.mask_in_pairs) {
        pairs[j][half] = arch::load_pair(from + own, own + 1 < a.keys);
        if (own + 1 == a.keys) {  // the element behind a row may not exist
          pairs[j][half] = reinterpret_cast<const uint16_t&>(from[own]);
        }
      } else {
        const auto at = [&](int c) {
          return c < a.keys ? uint32_t{reinterpret_cast<const uint16_t&>(from[c * a.mask_column])} : 0u;
        };
        pairs[j][half] = at(own) | at(own + 1) << 16;
      }
    }
  }
}

// The same from a tile in shared memory. `row` is the address of the row of this lane: of row lane % 16 of this warp,
// or of the only one. `swizzle` is its number modulo 8.
template <int kEights>
__device__ __forceinline__ void load_mask_tile(uint32_t row, uint32_t part_bytes, int swizzle, int lane,
                                               uint32_t (&pairs)[kEights][2]) {
#pragma unroll
  for (int i = 0; i < kEights / 2; ++i) {
    uint32_t matrices[4];
    load_matrices(matrices, row + i / 4 * part_bytes + (((i % 4 * 2 + lane / 16) ^ swizzle) << 4));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pairs[2 * i][half] = matrices[half];
      pairs[2 * i + 1][half] = matrices[2 + half];
    }
  }
}

}  // namespace fuseconv::cuda::attention_sm90_kernel
