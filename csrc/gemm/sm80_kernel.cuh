// y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) + residual[m, n], with the residual before or after the activation, or
// gated, with N columns of y and 2N rows of w,
//   y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) (sum_k x[m, k] w[N + n, k] + bias[N + n]),
// in f16 and bf16, for compute capability 8.0 and above.
//
// A block computes one tile of y, and each warp a part of the tile. Steps of 64 along k are copied to a ring buffer in
// shared memory a few steps before they are used. A warp loads the fragments of the next 16 along k while it multiplies
// the current 16. Before the epilogue, the tile is staged in shared memory in f32, so that each thread can access bias,
// residual and y 16 bytes at a time, and has both the gate and the up of each of its elements.
#pragma once

#include "arch/sm80.cuh"
#include "gemm/activation.cuh"

namespace fuseconv::linear::sm80 {

using namespace arch::sm80;

struct Arguments {
  const void* x;
  const void* w;
  const void* bias;
  const void* residual;
  void* y;
  int64_t x_stride, w_stride, residual_stride, y_stride;
  bool residual_first;
  int m, n, k;
  int row_tiles, column_tiles;
  Activation activation;
};

// A tile of kRows of x by kColumns of w. A warp computes kWarpRows by kWarpColumns of the tile. kStages steps of kDepth
// along k are in flight. The columns are rows of w: if gated, the first half are gates and the second half ups.
template <class T, int rows, int columns, int warp_rows, int warp_columns, int stages, bool gated>
struct Tile {
  using Element = T;
  static constexpr int kRows = rows, kColumns = columns, kWarpRows = warp_rows, kWarpColumns = warp_columns;
  static constexpr int kDepth = 64, kStages = stages;
  static constexpr bool kGated = gated;
  static constexpr int kYColumns = gated ? columns / 2 : columns, kWarpsAcross = columns / warp_columns;
  static constexpr int kThreads = 32 * (rows / warp_rows) * kWarpsAcross, kBlocks = 256 / kThreads;
  static constexpr int kPieces = kDepth / 8;  // the number of 16-byte pieces in a row
  static constexpr uint32_t kRowBytes = kDepth * 2, kXBytes = rows * kRowBytes,
                            kStageBytes = (rows + columns) * kRowBytes;
  static constexpr uint32_t kRing = kStages * kStageBytes, kStaging = rows * columns * 4;
  static constexpr uint32_t kBytes = kRing > kStaging ? kRing : kStaging;
};

// Returns the offset of a 16-byte piece of a row, swizzled so that the same piece of 8 rows lies in different banks.
template <class Tile>
__device__ __forceinline__ uint32_t ring_offset(int row, int piece) {
  return row * Tile::kRowBytes + ((piece ^ row % 8) << 4);
}

// Returns the staging address of the f32 at [row, column] of the tile. Pairs of one fragment, and runs of 4 elements of
// one row, have no bank conflicts.
template <int kColumns>
__device__ __forceinline__ int staging_offset(int row, int column) {
  const int block = column / 8 ^ row % 4;
  return row * kColumns + block * 8 + (column / 4 % 2 ^ block / 4 % 2) * 4 + column % 4;
}

// The part of one thread in the copy of kCount rows: one 16-byte piece of every kStep-th row. The rows from kHalf on
// are `up` bytes further away.
template <class Tile, int kCount, int kHalf>
struct Copier {
  static constexpr int kStep = Tile::kThreads / Tile::kPieces;
  const char* from;
  int64_t stride, up;
  int rows;  // the number of rows that exist from the first row on, in each half
  uint32_t to;

  __device__ __forceinline__ Copier(const void* data, int64_t row_stride, int first_row, int count, uint32_t shared)
      : stride(row_stride * 2), up(count * stride) {
    const int row = threadIdx.x / Tile::kPieces, piece = threadIdx.x % Tile::kPieces;
    from = static_cast<const char*>(data) + (first_row + row) * stride + piece * 16;
    rows = count - first_row - row;
    to = shared + ring_offset<Tile>(row, piece);
  }

  // Copies this thread's pieces of one step. `left` is the number of bytes from this thread's piece to the end of the
  // row. Bytes past the end are not read and become zeros.
  __device__ __forceinline__ void copy_step(uint32_t stage, int left) {
    const int bytes = min(max(left, 0), 16);
#pragma unroll
    for (int i = 0; i < kCount; i += kStep) {
      copy(to + stage + i * Tile::kRowBytes, from + i % kHalf * stride + (i < kHalf ? 0 : up),
           i % kHalf < rows ? bytes : 0);
    }
    from += Tile::kRowBytes;
  }
};

template <class Tile>
struct Fragments {
  uint32_t x[Tile::kWarpRows / 16][4];
  uint32_t w[Tile::kWarpColumns / 16][4];  // columns 0-7 of 16 in the first two elements, columns 8-15 in the others

  __device__ __forceinline__ void load(uint32_t from_x, uint32_t from_w) {
#pragma unroll
    for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
      load_matrices(x[i], from_x + i * 16 * Tile::kRowBytes);
    }
#pragma unroll
    for (int i = 0; i < Tile::kWarpColumns / 16; ++i) {
      load_matrices(w[i], from_w + i * 16 * Tile::kRowBytes);
    }
  }
};

template <class T>
struct alignas(16) Eight {
  T values[8];
};

template <class T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}

// Loads eight elements. Reads only the first `count`; the others are 0.
template <class T>
__device__ __forceinline__ Eight<T> load_eight(const T* from, int count) {
  Eight<T> eight{};
  if (count >= 8 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return *reinterpret_cast<const Eight<T>*>(from);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) {
      eight.values[i] = from[i];
    }
  }
  return eight;
}

// Writes the staged tile to y. A thread writes 8 columns, the same in each of its rows.
template <class Tile, Activation::Name kActivation>
__device__ __forceinline__ void finish(const Arguments& a, const float* staging, int first_row, int first_column) {
  using T = typename Tile::Element;
  using Act = Epilogue<kActivation>;
  const Act act = epilogue_of<kActivation>(a.activation);
  constexpr int kRuns = Tile::kYColumns / 8, kStep = Tile::kThreads / kRuns;
  constexpr int kUnroll = Tile::kRows / kStep < 4 ? Tile::kRows / kStep : 4;
  const int column = threadIdx.x % kRuns * 8, count = min(a.n - first_column - column, 8);
  if (count <= 0) {
    return;
  }
  Eight<T> bias{}, up_bias{};
  if (a.bias != nullptr) {
    const T* from = static_cast<const T*>(a.bias) + first_column + column;
    bias = load_eight(from, count);
    if constexpr (Tile::kGated) {
      up_bias = load_eight(from + a.n, count);
    }
  }
  for (int start = threadIdx.x / kRuns; start < Tile::kRows; start += kStep * kUnroll) {
    Eight<T> residual[kUnroll] = {};
    if (a.residual != nullptr) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t row = first_row + start + u * kStep;
        if (row < a.m) {
          residual[u] =
              load_eight(static_cast<const T*>(a.residual) + row * a.residual_stride + first_column + column, count);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int within = start + u * kStep;
      Eight<T> y;
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 z = *reinterpret_cast<const float4*>(staging + staging_offset<Tile::kColumns>(within, column + i));
        float4 up;
        if constexpr (Tile::kGated) {
          up = *reinterpret_cast<const float4*>(staging +
                                                staging_offset<Tile::kColumns>(within, Tile::kYColumns + column + i));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float b = to_float(bias.values[i + j]), r = to_float(residual[u].values[i + j]);
          if (a.residual_first) {
            b += r;
            r = 0.0f;
          }
          float value = act.apply(fmaf((&z.x)[j], Act::kScale, b * Act::kScale));
          if constexpr (Tile::kGated) {
            value *= (&up.x)[j] + to_float(up_bias.values[i + j]);
          } else {
            value += r;
          }
          y.values[i + j] = static_cast<T>(value);
        }
      }
      const int64_t row = first_row + within;
      if (row < a.m) {
        T* to = static_cast<T*>(a.y) + row * a.y_stride + first_column + column;
        if (count == 8) {
          *reinterpret_cast<Eight<T>*>(to) = y;
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (i < count) {
              to[i] = y.values[i];
            }
          }
        }
      }
    }
  }
}

template <class Tile>
__device__ __forceinline__ void finish(const Arguments& a, const float* staging, int row, int column) {
  with_constant(a.activation, [&]<class C>(C) { finish<Tile, C::value>(a, staging, row, column); });
}

// Rasterization: tiles are visited column by column in strips of 8 rows of tiles, so that w stays in L2.
__device__ __forceinline__ int2 tile_position(const Arguments& a) {
  constexpr int kStrip = 8;
  const int strip = blockIdx.x / (kStrip * a.column_tiles), within = blockIdx.x % (kStrip * a.column_tiles);
  const int height = min(kStrip, a.row_tiles - strip * kStrip);
  return {strip * kStrip + within % height, within / height};
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) linear_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t ring = shared_address(memory);
  const int2 at = tile_position(a);
  const int first_row = at.x * Tile::kRows, first_column = at.y * Tile::kYColumns;
  Copier<Tile, Tile::kRows, Tile::kRows> x(a.x, a.x_stride, first_row, a.m, ring);
  Copier<Tile, Tile::kColumns, Tile::kYColumns> w(a.w, a.w_stride, first_column, a.n, ring + Tile::kXBytes);
  const int steps = (a.k + Tile::kDepth - 1) / Tile::kDepth;
  const auto copy_step = [&](int step) {
    if (step < steps) {
      const uint32_t stage = step % Tile::kStages * Tile::kStageBytes;
      const int left = (a.k - step * Tile::kDepth - static_cast<int>(threadIdx.x % Tile::kPieces) * 8) * 2;
      x.copy_step(stage, left);
      w.copy_step(stage, left);
    }
    copy_commit();
  };
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step) {
    copy_step(step);
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / Tile::kWarpsAcross * Tile::kWarpRows,
            warp_column = warp % Tile::kWarpsAcross * Tile::kWarpColumns;
  // The fragments of the next 16 along k are two pieces further on. Their swizzled addresses differ from this one in
  // other bits.
  const uint32_t from_x = ring + ring_offset<Tile>(warp_row + lane % 16, lane / 16);
  const uint32_t from_w =
      ring + Tile::kXBytes + ring_offset<Tile>(warp_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float d[Tile::kWarpRows / 16][Tile::kWarpColumns / 8][4] = {};
  Fragments<Tile> fragments[2];
  copy_wait<Tile::kStages - 2>();
  __syncthreads();
  fragments[0].load(from_x, from_w);
  uint32_t stage = 0;
  constexpr int kParts = Tile::kDepth / 16;
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Fragments<Tile>& next = fragments[(part + 1) % 2];
      const Fragments<Tile>& now = fragments[part % 2];
      if (part == kParts - 1) {
        copy_wait<Tile::kStages - 2>();
        __syncthreads();
        stage = stage + Tile::kStageBytes == Tile::kRing ? 0 : stage + Tile::kStageBytes;
      }
      const uint32_t flip = (part + 1) % kParts * 32, next_x = (from_x ^ flip) + stage,
                     next_w = (from_w ^ flip) + stage;
      next.load(next_x, next_w);
      if (part == 0) {
        copy_step(step + Tile::kStages - 1);
      }
#pragma unroll
      for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::kWarpColumns / 8; ++j) {
          const uint32_t (&b)[4] = now.w[j / 2];
          multiply(d[i][j], now.x[i], b[j % 2 * 2], b[j % 2 * 2 + 1], typename Tile::Element());
        }
      }
    }
  }

  copy_wait<0>();
  __syncthreads();
  float* staging = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kWarpColumns / 8; ++j) {
      const int row = warp_row + 16 * i + lane / 4, column = warp_column + 8 * j + lane % 4 * 2;
      *reinterpret_cast<float2*>(staging + staging_offset<Tile::kColumns>(row, column)) = {d[i][j][0], d[i][j][1]};
      *reinterpret_cast<float2*>(staging + staging_offset<Tile::kColumns>(row + 8, column)) = {d[i][j][2], d[i][j][3]};
    }
  }
  __syncthreads();
  finish<Tile>(a, staging, first_row, first_column);
}

}  // namespace fuseconv::linear::sm80
