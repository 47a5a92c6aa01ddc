// y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) + residual[m, n], with the residual before or after the activation, or
// gated, in f32, on Hopper's TF32 Tensor Cores. x is a matrix, or the implicit matrix of a convolution (problem.h),
// whose tiles TMA gathers from the images.
//
// arch/tf32.cuh describes the three products of each pair of factors. The Tensor Cores add 32 products.
//
// The grid is persistent. One warp copies tiles of x and w to a ring in shared memory, three warps compute w2 from w
// and store it next to w, and two warpgroups multiply 64 rows each, with x1 and x2 in registers. w1 is w itself,
// because the Tensor Cores ignore its lower bits.
#pragma once

#include "arch/sm90.cuh"
#include "arch/sm90_wgmma.cuh"
#include "arch/tf32.cuh"
#include "gemm/ring.cuh"
#include "gemm/tf32x3_epilogue.cuh"

namespace fuseconv::linear::tf32x3 {

using namespace arch::sm90;
using namespace arch::tf32;

inline constexpr int kDepth = 32;  // the columns of a step along k

// A tile of `groups` bands of 64 rows by `columns` columns.
template <int groups, int columns>
struct Tile {
  static constexpr int kGroups = groups, kColumns = columns, kRows = 64 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1), kSplitters = 96;
  static constexpr uint32_t kXBytes = kRows * kDepth * 4, kWBytes = kColumns * kDepth * 4;
  static constexpr int kStages = 192 * 1024 / (kXBytes + 2 * kWBytes);
  static constexpr uint32_t kX = 0, kW = kStages * kXBytes, kLow = kW + kStages * kWBytes;
  static constexpr uint32_t kFull = kLow + kStages * kWBytes, kSplit = kFull + kStages * 8,
                            kEmpty = kSplit + kStages * 8;
  static constexpr uint32_t kBytes = kEmpty + kStages * 8 + 1024;
  static_assert(kBytes <= 227 * 1024);
};

// The first row and column of a tile of y. Rasterization: tiles are visited down the rows in strips of 16 rows of
// tiles, so that w stays in L2.
struct TilePosition {
  int row, column;
};
template <class Tile, bool kGated>
__device__ __forceinline__ TilePosition tile_position(const Arguments& a, int tile) {
  constexpr int kStrip = 16, kYColumns = Tile::kColumns / (kGated ? 2 : 1);
  const int strip = tile / (kStrip * a.columns), within = tile - strip * kStrip * a.columns;
  const int height = min(kStrip, a.rows - strip * kStrip);
  return {(strip * kStrip + within % height) * Tile::kRows, within / height * kYColumns};
}

// Producer: one thread copies the tiles.
template <class Tile, bool kGated>
__device__ __forceinline__ void copy_tiles(const Arguments& a, const CUtensorMap& x_map, const CUtensorMap& w_map,
                                           uint32_t shared) {
  Ring<Tile::kStages> at;
  for (int tile = blockIdx.x; tile < a.rows * a.columns; tile += gridDim.x) {
    const TilePosition p = tile_position<Tile, kGated>(a, tile);
    const Pixel first = a.is_convolution ? first_pixel(a.first, p.row) : Pixel{};
    Step s;
    for (int step = 0; step < a.steps; ++step, at.advance(), s.advance(kDepth, a.channels, a.windows.kernel_width)) {
      // The number of steps is even. A step after the last position loads channels after the last one: zeros.
      const Step now = s.position == a.positions ? Step{a.channels} : s;
      const uint32_t full = shared + Tile::kFull + at.stage * 8, w = shared + Tile::kW + at.stage * Tile::kWBytes;
      barrier_wait(shared + Tile::kEmpty + at.stage * 8, at.parity ^ 1);
      barrier_expect(full, Tile::kXBytes + Tile::kWBytes);
      const uint32_t x = shared + Tile::kX + at.stage * Tile::kXBytes;
      if (a.is_convolution && !a.has_rows) {
        load_positions(x, x_map, now.channel, first, now.x * a.first.dilation_x, full);
      } else if (a.is_convolution) {
        load_pixels(x, x_map, now.channel, first, now.x * a.first.dilation_x, now.y * a.first.dilation_y, full);
      } else {
        load_box(x, x_map, now.channel, p.row, full);
      }
      load_box(w, w_map, now.channel, now.position, p.column, full);
      load_box(w + Tile::kWBytes / 2, w_map, now.channel, now.position, p.column + (kGated ? a.n : Tile::kColumns / 2),
               full);
    }
  }
}

// Three warps compute the second part of w.
template <class Tile>
__device__ __forceinline__ void split_tiles(const Arguments& a, uint8_t* memory, uint32_t shared, int thread) {
  Ring<Tile::kStages> at;
  for (int tile = blockIdx.x; tile < a.rows * a.columns; tile += gridDim.x) {
    for (int step = 0; step < a.steps; ++step, at.advance()) {
      const float4* w = reinterpret_cast<const float4*>(memory + Tile::kW + at.stage * Tile::kWBytes);
      float4* low = reinterpret_cast<float4*>(memory + Tile::kLow + at.stage * Tile::kWBytes);
      barrier_wait(shared + Tile::kFull + at.stage * 8, at.parity);
#pragma unroll 4
      for (int i = thread; i < static_cast<int>(Tile::kWBytes / 16); i += Tile::kSplitters) {
        const float4 v = w[i];
        low[i] = {low_part(v.x), low_part(v.y), low_part(v.z), low_part(v.w)};
      }
      shared_fence();
      __syncwarp();
      if (thread % 32 == 0) {
        barrier_arrive(shared + Tile::kSplit + at.stage * 8);
      }
    }
  }
}

// A consumer warpgroup. While one of two batches of 12 products is queued in the Tensor Cores, the warpgroup adds the
// sums of the other batch and splits the next columns of x. If a loop or branch separated a batch from the wait for it,
// the compiler would make every product wait for the previous one. Therefore one round has two steps, and the last
// round of a tile loads the first columns of the next tile.
template <class Tile, bool kGated>
struct Multiplier {
  static constexpr int kHalves = Tile::kColumns / 64;  // the batches of 64 columns in a step

  const Arguments& a;
  const uint32_t shared;
  const int lane, warp;
  Ring<Tile::kStages> at;
  float sum[kHalves][32], d[2][32];
  uint32_t x1[2][4][4], x2[2][4][4];

  // Loads and splits columns of x for the next step in the ring, if there is one, from row lane / 4 of this warp's 16
  // rows on. A row consists of 16-byte pieces, swizzled by the row number, and this thread takes 4 bytes of each.
  __device__ __forceinline__ void load_x(int to, bool is_there) {
    const uint32_t own = shared + Tile::kX + at.stage * Tile::kXBytes + (warp * 16 + lane / 4) * 128 + lane % 4 * 4;
    barrier_wait_if(is_there, shared + Tile::kFull + at.stage * 8, at.parity);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int piece = i / 4 * 2 + i % 4 / 2;
      const float x = load_shared(own + i % 2 * 8 * 128 + ((piece ^ (lane / 4)) << 4));
      x1[to][i / 4][i % 4] = first_part(x);
      x2[to][i / 4][i % 4] = second_part(x, x1[to][i / 4][i % 4]);
    }
  }

  // Queues the products with 64 columns of w, starting at 64 * `half`. In units of 16 bytes: 64 columns of w are 8192
  // bytes, and 8 columns of x are 32 bytes.
  __device__ __forceinline__ void queue(float (&to)[32], const uint32_t (&first)[4][4], const uint32_t (&second)[4][4],
                                        int half) {
    const uint64_t w = tile_descriptor(shared + Tile::kW + at.stage * Tile::kWBytes) + 512 * half;
    const uint64_t low = tile_descriptor(shared + Tile::kLow + at.stage * Tile::kWBytes) + 512 * half;
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_tf32(to, second[i], w + 2 * i, i > 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_tf32(to, first[i], low + 2 * i, 1);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_tf32(to, first[i], w + 2 * i, 1);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void release(int stage) {
    if (lane == 0) {
      barrier_arrive(shared + Tile::kEmpty + stage * 8);
    }
  }

  __device__ __forceinline__ void add(float (&to)[32], const float (&more)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      to[i] += more[i];
    }
  }

  // Runs the first or the second of the two steps of 32 columns in a round. `more` is true if another step follows.
  template <int kTurn>
  __device__ __forceinline__ void step(bool more) {
    const int before = (at.stage + Tile::kStages - 1) % Tile::kStages;
    barrier_wait(shared + Tile::kSplit + at.stage * 8, at.parity);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int now = kHalves == 2 ? half : kTurn;
      queue(d[now], x1[kTurn], x2[kTurn], half);
      if (kTurn == 1 || half == 1) {
        wgmma_wait<1>(d[1 - now]);
      }
      add(sum[kHalves == 2 ? 1 - half : 0], d[1 - now]);
      if (kTurn == 1 && half == 0) {
        release(before);
      }
    }
    at.advance();
    load_x(1 - kTurn, more);
  }

  // Computes the products of a tile. The columns of x for the first step must already be loaded.
  __device__ __forceinline__ void multiply_tile(bool is_last) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      sum[0][i] = sum[kHalves - 1][i] = d[1][i] = 0.0f;
    }
#pragma unroll 1
    for (int number = 0; number < a.steps; number += 2) {
      step<0>(true);
      step<1>(!is_last || number + 2 < a.steps);
      wgmma_wait<0>(d[1]);
      release((at.stage + Tile::kStages - 1) % Tile::kStages);
    }
    add(sum[kHalves - 1], d[1]);
  }

  // Recomputes in f32 the sums that are not finite.
  __device__ __forceinline__ void settle(int row, int column) {
    constexpr int kSums = kHalves * 32, kPairs = Tile::kColumns / 8 / (kGated ? 2 : 1);
    uint64_t bad = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      bad |= isfinite(sum[i / 32][i % 32]) ? 0 : uint64_t{1} << i;
    }
#pragma unroll 1
    for (; bad != 0; bad &= bad - 1) {
      const int at = __ffsll(static_cast<long long>(bad)) - 1;
      const int r = row + at / 2 % 2 * 8, c = column + at / 4 % kPairs * 8 + at % 2;
      if (r < a.m && c < a.n) {
        const float exact = product(a, r, c + (at / 4 >= kPairs ? a.n : 0));
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sum[i / 32][i % 32] = i == at ? exact : sum[i / 32][i % 32];
        }
      }
    }
  }

  // Writes the y of a tile. If gated, the ups follow the gates after half of the columns.
  __device__ __forceinline__ void finish_tile(int row, int column) {
    constexpr int kPairs = Tile::kColumns / 8 / (kGated ? 2 : 1), kAtOnce = kGated ? 4 : 8;
    settle(row, column);
    float2 bias[kPairs], up_bias[kGated ? kPairs : 1];
    load_bias(bias, a, column, 0);
    if constexpr (kGated) {
      load_bias(up_bias, a, column, a.n);
    }
    const float* sums = &sum[0][0];
    dispatch(a.activation, [&](auto act) {
#pragma unroll
      for (int part = 0; part < kHalves; ++part) {
        finish<kGated>(a, sums + part * kAtOnce * 4, sums + (part * kAtOnce + kPairs) * 4, bias + part * kAtOnce,
                       kGated ? up_bias + part * kAtOnce : nullptr, row, column + part * kAtOnce * 8, act);
      }
    });
  }

  __device__ __forceinline__ void run() {
    const int tiles = a.rows * a.columns;
    load_x(0, true);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      multiply_tile(tile + static_cast<int>(gridDim.x) >= tiles);
      const TilePosition p = tile_position<Tile, kGated>(a, tile);
      finish_tile(p.row + warp * 16 + lane / 4, p.column + lane % 4 * 2);
    }
  }
};

template <class Tile, bool kGated>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    tf32x3_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  // Swizzled tiles must start at multiples of 1024 bytes.
  uint8_t* const base = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const uint32_t shared = shared_address(base);
  if (threadIdx.x < Tile::kStages) {
    barrier_init(shared + Tile::kFull + threadIdx.x * 8, 1);
    barrier_init(shared + Tile::kSplit + threadIdx.x * 8, Tile::kSplitters / 32);
    barrier_init(shared + Tile::kEmpty + threadIdx.x * 8, 4 * Tile::kGroups);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_grid();
  launch_dependent_grids();
  if (threadIdx.x < 128) {
    if constexpr (Tile::kGroups == 2) {
      warpgroup_reg_dealloc<40>();
    }
    if (threadIdx.x == 0) {
      copy_tiles<Tile, kGated>(a, x_map, w_map, shared);
    } else if (threadIdx.x >= 32) {
      split_tiles<Tile>(a, base, shared, static_cast<int>(threadIdx.x) - 32);
    }
  } else {
    if constexpr (Tile::kGroups == 2) {
      warpgroup_reg_alloc<232>();
    }
    Multiplier<Tile, kGated> multiplier{a, shared, static_cast<int>(threadIdx.x % 32),
                                        static_cast<int>(threadIdx.x / 32) - 4};
    multiplier.run();
  }
#endif
}

}  // namespace fuseconv::linear::tf32x3
