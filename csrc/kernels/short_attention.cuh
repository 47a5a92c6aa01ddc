// Attention over few keys in one kernel, in f16 and bf16 with f32 accumulators. A block holds all keys and values of
// its heads in shared memory, and each of its warps computes 16 queries by mma.sync. The softmax is computed while the
// products of 64 keys at a time are in registers (Dao et al., "FlashAttention", 2022); with up to 64 keys nothing is
// computed twice. A kernel for long sequences has tiles that are larger than such a problem: with the 49 keys and 32
// columns of a window of 7 x 7 pixels, it is limited by neither bandwidth nor arithmetic.
//
// Lane l of a warp holds the scores of rows l / 4 and l / 4 + 8 of its 16 queries, in columns 2 (l % 4) and
// 2 (l % 4) + 1 of every 8 keys, which is also how the second product takes its left operand (PTX ISA, mma.m16n8k16).
#pragma once

#include "arch/pairs.cuh"
#include "arch/sm80.cuh"
#include "kernels/index.cuh"
#include "kernels/online_softmax.cuh"

namespace fuseconv::cuda::attention_kernel {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kTile = 16;   // queries of a warp
inline constexpr int kChunk = 64;  // keys whose scores are in registers
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
  bool mask_in_vectors;  // whether each row of the mask is dense and begins at a multiple of 16 bytes
  float scale;
};

// The elements of a row in shared memory. It is an odd number of 16-byte vectors, so that 8 rows are in different
// banks.
template <int kWidth>
inline constexpr int kRow = kWidth + 8;

// The blocks that are to fit on an SM: they hide the latency of memory from each other.
template <int kWidth>
inline constexpr int kResident = kWidth <= 32   ? 5
                                 : kWidth <= 64 ? 4
                                                : 2;

__host__ __device__ __forceinline__ int padded(int keys) { return (keys + kTile - 1) / kTile * kTile; }

// The same for the rows of the mask, of which each warp holds those of its queries.
__host__ __device__ __forceinline__ int mask_row(int keys) { return padded(keys) + 8; }

template <int kWidth>
size_t shared_bytes(int keys, int tiles, bool masked) {
  const int rows = kWarps / tiles * (2 * padded(keys) + tiles * kTile);
  return size_t{2} * (rows * kRow<kWidth> + masked * kWarps * kTile * mask_row(keys));
}

// Copies rows [begin, end) of a matrix to shared memory. Rows from `rows` on and columns from `width` on become zero.
template <class T, int kWidth>
__device__ __forceinline__ void copy_rows(T* to, const T* from, int64_t stride, int begin, int end, int rows,
                                          int width) {
  constexpr int kVectors = kWidth / 8, kStep = kThreads / kVectors;
  const int column = threadIdx.x % kVectors * 8;
  int row = begin + threadIdx.x / kVectors;
  const T* source = from + row * stride + column;
  uint32_t target = arch::sm80::shared_address(to + row * kRow<kWidth> + column);
  if (threadIdx.x >= kStep * kVectors) {
    return;
  }
  for (; row < end; row += kStep, source += kStep * stride, target += kStep * kRow<kWidth> * 2) {
    const bool is_inside = row < rows && column < width;
    arch::sm80::copy_async(target, is_inside ? source : from, is_inside ? 16 : 0);
  }
}

// Copies columns [begin, end) of the mask of a warp's queries to shared memory. Rows that begin anywhere are loaded by
// element. Elements outside the mask may have any value.
template <class T>
__device__ __forceinline__ void copy_mask(T* to, const T* from, const Arguments& a, int rows, int begin, int end) {
  const int lane = threadIdx.x % 32, stride = mask_row(a.keys);
  rows = min(rows, kTile);
  if (a.mask_in_vectors) {
    const int column = begin + lane % 8 * 8;
    if (column < end) {
      for (int row = lane / 8; row < rows; row += 4) {
        const uint32_t target = arch::sm80::shared_address(to + row * stride + column);
        arch::sm80::copy_async(target, from + row * a.mask_row + column, min(end - column, 8) * 2);
      }
    }
    return;
  }
  constexpr int kBatch = 4;  // rows that are loaded before any is stored
#pragma unroll 1
  for (int first = 0; first < rows; first += kBatch) {
    T values[kBatch][2];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + i, column = begin + half * 32 + lane;
        if (row < rows && column < end) {
          values[i][half] = from[row * a.mask_row + column * a.mask_column];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + i, column = begin + half * 32 + lane;
        if (row < rows && column < end) {
          to[row * stride + column] = values[i][half];
        }
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

// Computes attention as kernels/attention.h describes. Without a mask, `a.scale` must be positive.
template <class T, int kWidth, bool kMasked>
__global__ void __launch_bounds__(kThreads, kResident<kWidth>)
    short_attention_kernel(const __grid_constant__ Arguments a) {
  constexpr int kSteps = kWidth / 16;
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t heads_per_block = kWarps / a.tiles;
  const uint32_t block = a.groups.quotient(blockIdx.x);
  const int first_query = static_cast<int>(blockIdx.x - block * a.groups.divisor) * a.tiles * kTile;
  const int key_rows = padded(a.keys), query_rows = a.tiles * kTile;
  const int slot = (2 * key_rows + query_rows) * kRow<kWidth>;  // the elements of a head
  T* const shared = reinterpret_cast<T*>(memory);

  // The head and the queries of this warp.
  const uint32_t own = warp / a.tiles, head = block * heads_per_block + own;
  const int tile = warp % a.tiles * kTile, row_count = a.queries - first_query - tile;
  const bool is_active = head < a.head_count && row_count > 0;
  T* const keys = shared + own * slot;
  T* const values = keys + key_rows * kRow<kWidth>;
  T* const rows = values + (key_rows + tile) * kRow<kWidth>;
  T* const added = shared + heads_per_block * slot + warp * kTile * mask_row(a.keys);  // only with a mask

  for (int begin = 0; begin < key_rows; begin += kChunk) {
    const int end = min(begin + kChunk, key_rows);
    for (uint32_t i = 0; i < heads_per_block; ++i) {
      const uint32_t other = block * heads_per_block + i;
      if (other < a.head_count) {
        int64_t offsets[4] = {0, 0, 0, 0};
        a.heads.locate(other, offsets);
        T* const to = shared + i * slot;
        if (begin == 0) {
          copy_rows<T, kWidth>(to + 2 * key_rows * kRow<kWidth>,
                               static_cast<const T*>(a.q) + offsets[1] + first_query * a.q_row, a.q_row, 0, query_rows,
                               a.queries - first_query, a.width);
        }
        copy_rows<T, kWidth>(to, static_cast<const T*>(a.k) + offsets[2], a.k_row, begin, end, a.keys, a.width);
        copy_rows<T, kWidth>(to + key_rows * kRow<kWidth>, static_cast<const T*>(a.v) + offsets[3], a.v_row, begin, end,
                             a.keys, a.width);
      }
    }
    if constexpr (kMasked) {
      if (is_active) {
        int64_t offsets[2] = {0, 0};
        a.masks.locate(head, offsets);
        const T* const mask = static_cast<const T*>(a.mask) + offsets[1] + (first_query + tile) * a.mask_row;
        copy_mask(added, mask, a, row_count, begin, min(end, a.keys));
      }
    }
    arch::sm80::copy_commit();
  }

  uint32_t q[kSteps][4];
  float y[2 * kSteps][4] = {};
  OnlineSoftmax softmax;
  for (int begin = 0; begin < key_rows; begin += kChunk) {
    const int columns = a.keys - begin;  // of this chunk, and of those after it
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
      if (j * 8 < columns) {
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
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if constexpr (kMasked) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const T* const from = added + (lane / 4 + half * 8) * mask_row(a.keys) + begin + column;
          const auto pair = *reinterpret_cast<const Vector<T, 2>*>(j * 8 < columns ? from : added);
          s[j][half * 2] = s[j][half * 2] * a.scale + widen(pair.values[0]);
          s[j][half * 2 + 1] = s[j][half * 2 + 1] * a.scale + widen(pair.values[1]);
        }
      }
      if (j * 8 + 8 > columns) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[j][i] = column + i % 2 < columns ? s[j][i] : -INFINITY;
        }
      }
    }

    float old[2];
    const auto at = [&](int row, int i) -> float& { return s[i / 2][row * 2 + i % 2]; };
    softmax.weigh<kChunk / 4>(at, kMasked ? 1.0f : a.scale, old);
    if (begin > 0) {
#pragma unroll
      for (int i = 0; i < 8 * kSteps; ++i) {
        y[i / 4][i % 4] *= old[i / 2 % 2];
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 2) {
      if (j * 8 < columns) {
        const uint32_t p[4] = {arch::pack(s[j][0], s[j][1], T{}), arch::pack(s[j][2], s[j][3], T{}),
                               arch::pack(s[j + 1][0], s[j + 1][1], T{}), arch::pack(s[j + 1][2], s[j + 1][3], T{})};
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
    const float share = softmax.share(half);
    T* const to = rows + (lane / 4 + half * 8) * kRow<kWidth> + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      *reinterpret_cast<uint32_t*>(to + j * 8) = arch::pack(y[j][half * 2] * share, y[j][half * 2 + 1] * share, T{});
    }
  }
  __syncwarp();
  int64_t offsets[4] = {0, 0, 0, 0};
  a.heads.locate(head, offsets);
  T* const result = static_cast<T*>(a.y) + offsets[0] + (first_query + tile) * a.y_row;
  constexpr int kVectors = kWidth / 8;
#pragma unroll
  for (int i = lane; i < kTile * kVectors; i += 32) {
    const int r = i / kVectors, c = i % kVectors * 8;
    if (r < row_count && c < a.width) {
      *reinterpret_cast<uint4*>(result + r * a.y_row + c) =
          *reinterpret_cast<const uint4*>(rows + r * kRow<kWidth> + c);
    }
  }
}

}  // namespace fuseconv::cuda::attention_kernel
