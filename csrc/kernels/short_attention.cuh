// Attention over few keys in one kernel, in f16 and bf16 with f32 accumulators. A block holds all keys and values of
// its heads in shared memory, and each of its warps computes 16 queries by mma.sync. The softmax is computed while the
// products of 64 keys at a time are in registers (Dao et al., "FlashAttention", 2022); with up to 64 keys nothing is
// computed twice. A kernel for long sequences has tiles that are larger than such a problem: with the 49 keys and 32
// columns of a window of 7 x 7 pixels, it is limited by neither bandwidth nor arithmetic.
//
// Lane l of a warp holds the scores of rows l / 4 and l / 4 + 8 of its 16 queries, in columns 2 (l % 4) and
// 2 (l % 4) + 1 of every 8 keys, which is also how the second product takes its left operand (PTX ISA, mma.m16n8k16).
#pragma once

#include "arch/math.cuh"
#include "arch/sm80.cuh"
#include "kernels/index.cuh"

namespace fuseconv::cuda::attention_kernel {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kTile = 16;    // queries of a warp
inline constexpr int kChunk = 64;   // keys whose scores are in registers
inline constexpr int kMostKeys = 256;

struct Arguments {
  IndexSpace<uint32_t, 4> heads;  // operands: y, q, k, v
  IndexSpace<uint32_t, 2> masks;  // operands: y, mask
  uint32_t head_count;
  Divisor<uint32_t> groups;  // of queries, per head
  int queries, keys, width;
  int tiles;  // of a head in a block: 1, 2 or 4
  int64_t q_row, k_row, v_row, y_row, mask_row, mask_column;
  const void *q, *k, *v, *mask;
  void* y;
  float scale;
};

// The elements of a row in shared memory. It is an odd number of 16-byte vectors, so that 8 rows are in different banks.
template <int kWidth>
inline constexpr int kRow = kWidth + 8;

// The elements between the rows of the mask in shared memory, of which a warp holds those of its queries.
inline constexpr int kMaskRow = kChunk + 8;

// The blocks that are to fit on an SM: they hide the latency of memory from each other.
template <int kWidth>
inline constexpr int kResident = kWidth <= 32 ? 5 : kWidth <= 64 ? 4 : 2;

inline int padded_keys(int keys) { return (keys + kTile - 1) / kTile * kTile; }

template <int kWidth>
size_t shared_bytes(int keys, int tiles, bool masked) {
  const int rows = kWarps / tiles * (2 * padded_keys(keys) + tiles * kTile);
  return size_t{2} * (rows * kRow<kWidth> + masked * kWarps * kTile * kMaskRow);
}

__device__ __forceinline__ uint32_t packed(float a, float b, __half) {
  const __half2 pair = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t packed(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Copies rows [begin, end) of a matrix to shared memory. Rows from `rows` on and columns from `width` on become zero.
template <class T, int kWidth>
__device__ __forceinline__ void copy_rows(T* to, const T* from, int64_t stride, int begin, int end, int rows,
                                          int width) {
  constexpr int kVectors = kWidth / 8;
  for (int i = begin * kVectors + threadIdx.x; i < end * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * 8;
    const bool is_inside = row < rows && column < width;
    const T* const source = is_inside ? from + row * stride + column : from;
    arch::sm80::copy_async(arch::sm80::shared_address(to + row * kRow<kWidth> + column), source, is_inside ? 16 : 0);
  }
}

// Copies the mask of 16 queries and up to 64 keys to shared memory, by a warp. Its rows may begin anywhere, so that the
// loads have one element each, and those of a warp are adjacent. Elements outside the mask remain as they are.
template <class T>
__device__ __forceinline__ void copy_mask(T* to, const T* from, const Arguments& a, int rows, int columns) {
  constexpr int kBatch = 4;  // rows that are loaded before any is stored
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = 0; first < min(kTile, rows); first += kBatch) {
    T values[kBatch][2];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + i, column = half * 32 + lane;
        if (row < rows && column < columns) {
          values[i][half] = from[row * a.mask_row + column * a.mask_column];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to[(first + i) * kMaskRow + half * 32 + lane] = values[i][half];
      }
    }
  }
}

// Waits until all but the last `pending` groups of copies have arrived, of this thread and then of all threads.
__device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0:
      arch::sm80::copy_wait<0>();
      break;
    case 1:
      arch::sm80::copy_wait<1>();
      break;
    case 2:
      arch::sm80::copy_wait<2>();
      break;
    default:
      arch::sm80::copy_wait<3>();
  }
  __syncthreads();
}

template <class Combine>
__device__ __forceinline__ float over_row(float x, Combine combine) {
  x = combine(x, __shfl_xor_sync(~0u, x, 1));
  return combine(x, __shfl_xor_sync(~0u, x, 2));
}

template <class T, int kWidth, bool kMasked>
__global__ void __launch_bounds__(kThreads, kResident<kWidth>) short_attention_kernel(const __grid_constant__ Arguments a) {
  constexpr int kSteps = kWidth / 16;
  constexpr float kLog2E = 1.4426950408889634f;
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t heads_per_block = kWarps / a.tiles;
  const uint32_t block = a.groups.quotient(blockIdx.x);
  const int first_query = static_cast<int>(blockIdx.x - block * a.groups.divisor) * a.tiles * kTile;
  const int key_rows = (a.keys + kTile - 1) / kTile * kTile, query_rows = a.tiles * kTile;
  const int slot = (2 * key_rows + query_rows) * kRow<kWidth>;  // the elements of a head
  T* const shared = reinterpret_cast<T*>(memory);

  for (int begin = 0; begin < key_rows; begin += kChunk) {
    const int end = min(begin + kChunk, key_rows);
    for (uint32_t i = 0; i < heads_per_block; ++i) {
      const uint32_t head = block * heads_per_block + i;
      if (head < a.head_count) {
        int64_t offsets[4] = {0, 0, 0, 0};
        a.heads.locate(head, offsets);
        T* const keys = shared + i * slot;
        const T* const k = static_cast<const T*>(a.k) + offsets[2];
        const T* const v = static_cast<const T*>(a.v) + offsets[3];
        if (begin == 0) {
          const T* const q = static_cast<const T*>(a.q) + offsets[1] + first_query * a.q_row;
          copy_rows<T, kWidth>(keys + 2 * key_rows * kRow<kWidth>, q, a.q_row, 0, query_rows, a.queries - first_query,
                               a.width);
        }
        copy_rows<T, kWidth>(keys, k, a.k_row, begin, end, a.keys, a.width);
        copy_rows<T, kWidth>(keys + key_rows * kRow<kWidth>, v, a.v_row, begin, end, a.keys, a.width);
      }
    }
    arch::sm80::copy_commit();
  }

  const uint32_t own = warp / a.tiles, head = block * heads_per_block + own;
  const int tile = warp % a.tiles * kTile;  // its first row among those of the block
  const bool is_active = head < a.head_count && first_query + tile < a.queries;
  const T* const keys = shared + own * slot;
  const T* const values = keys + key_rows * kRow<kWidth>;
  T* const rows = shared + own * slot + (2 * key_rows + tile) * kRow<kWidth>;
  const int column = lane % 4 * 2;
  T* const added = shared + heads_per_block * slot + warp * kTile * kMaskRow;  // used only with a mask
  const T* mask = static_cast<const T*>(a.mask);
  int64_t offsets[4] = {0, 0, 0, 0};
  if (is_active) {
    a.heads.locate(head, offsets);
    if constexpr (kMasked) {
      int64_t places[2] = {0, 0};
      a.masks.locate(head, places);
      mask += places[1] + (first_query + tile) * a.mask_row;
    }
  }

  uint32_t q[kSteps][4];
  float y[2 * kSteps][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int begin = 0; begin < key_rows; begin += kChunk) {
    const int tiles = min(kChunk, a.keys - begin + 7) / 8;  // of 8 keys, in this chunk
    if constexpr (kMasked) {
      if (is_active) {
        __syncwarp();
        copy_mask(added, mask + begin * a.mask_column, a, a.queries - first_query - tile, a.keys - begin);
      }
    }
    wait_for_copies((key_rows - begin - 1) / kChunk);
    if (!is_active) {
      continue;
    }
    if (begin == 0) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const T* const from = rows + lane % 16 * kRow<kWidth> + step * 16 + lane / 16 * 8;
        arch::sm80::load_matrices(q[step], arch::sm80::shared_address(from));
      }
    }

    float s[kChunk / 8][4] = {};
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 2) {
      if (j < tiles) {
        const T* const from = keys + (begin + j * 8 + lane / 16 * 8 + lane % 8) * kRow<kWidth> + lane / 8 % 2 * 8;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t k[4];
          arch::sm80::load_matrices(k, arch::sm80::shared_address(from + step * 16));
          arch::sm80::multiply(s[j], q[step], k[0], k[1], T{});
          arch::sm80::multiply(s[j + 1], q[step], k[2], k[3], T{});
        }
      }
    }
    float top[2] = {largest[0], largest[1]};
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = s[j][i] * a.scale;
        if constexpr (kMasked) {
          score += widen(added[(lane / 4 + i / 2 * 8) * kMaskRow + j * 8 + column + i % 2]);
        }
        s[j][i] = begin + j * 8 + column + i % 2 < a.keys ? score : -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], s[j][i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = over_row(top[half], [](float x, float z) { return fmaxf(x, z); });
      const float pivot = top[half] == -INFINITY ? 0.0f : top[half];  // so that -inf becomes 0 and not NaN
      const float factor = arch::exp2_approx((largest[half] - pivot) * kLog2E);
      largest[half] = top[half];
      total[half] *= factor;
#pragma unroll
      for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[j][half * 2 + i];
          score = arch::exp2_approx((score - pivot) * kLog2E);
          total[half] += score;
        }
      }
#pragma unroll
      for (int j = 0; j < 2 * kSteps; ++j) {
        y[j][half * 2] *= factor;
        y[j][half * 2 + 1] *= factor;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 2) {
      if (j < tiles) {
        const uint32_t p[4] = {packed(s[j][0], s[j][1], T{}), packed(s[j][2], s[j][3], T{}),
                               packed(s[j + 1][0], s[j + 1][1], T{}), packed(s[j + 1][2], s[j + 1][3], T{})};
        const T* const from = values + (begin + j * 8 + lane % 16) * kRow<kWidth> + lane / 16 * 8;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t v[4];
          arch::sm80::load_transposed(v, arch::sm80::shared_address(from + step * 16));
          arch::sm80::multiply(y[2 * step], p, v[0], v[1], T{});
          arch::sm80::multiply(y[2 * step + 1], p, v[2], v[3], T{});
        }
      }
    }
  }
  if (!is_active) {
    return;
  }

  // The results go to memory by way of the rows of the queries, which only this warp has read.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = over_row(total[half], [](float x, float z) { return x + z; });
    const float share = sum == 0.0f ? 0.0f : 1.0f / sum;
    T* const to = rows + (lane / 4 + half * 8) * kRow<kWidth> + column;
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      *reinterpret_cast<uint32_t*>(to + j * 8) = packed(y[j][half * 2] * share, y[j][half * 2 + 1] * share, T{});
    }
  }
  __syncwarp();
  T* const result = static_cast<T*>(a.y) + offsets[0] + (first_query + tile) * a.y_row;
  constexpr int kVectors = kWidth / 8;
#pragma unroll
  for (int i = lane; i < kTile * kVectors; i += 32) {
    const int r = i / kVectors, c = i % kVectors * 8;
    if (first_query + tile + r < a.queries && c < a.width) {
      *reinterpret_cast<uint4*>(result + r * a.y_row + c) = *reinterpret_cast<const uint4*>(rows + r * kRow<kWidth> + c);
    }
  }
}

}  // namespace fuseconv::cuda::attention_kernel
