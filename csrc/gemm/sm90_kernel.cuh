// y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) + residual[m, n], with the residual before or after the activation, or
// gated, with N columns of y and 2N rows of w,
//   y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) (sum_k x[m, k] w[N + n, k] + bias[N + n]),
// in f16, bf16, and f32 whose factors TMA rounds to TF32, for Hopper (sm_90a). x is a matrix, or the implicit matrix of
// a convolution (problem.h), whose tiles TMA gathers from the images.
//
// The grid is persistent. In each block, two producer warps copy tiles of x and w with TMA to a ring in shared memory.
// The consumer warpgroups work in ping-pong: the first takes the block's even tiles, the second the odd tiles, so that
// one uses the Tensor Cores while the other computes its activations. (In a cooperative tile, for problems with one
// tile per block, each takes half of the tile.) Each warp writes its own 16 rows of a band to y, 128 bytes at a time,
// without synchronizing with other warps.
#pragma once

#include <type_traits>

#include "arch/sm90.cuh"
#include "arch/sm90_wgmma.cuh"
#include "gemm/ring.cuh"
#include "gemm/sm90_arguments.h"
#include "gemm/sm90_epilogue.cuh"
#include "gemm/sm90_tile.h"
#include "gemm/windows.cuh"

namespace fuseconv::linear::sm90 {

// This block's part of a cluster tile: its first row and column, the group of its columns, and the end of the group.
struct TilePosition {
  int row, column, group, end;
};

template <class Tile>
__device__ __forceinline__ TilePosition tile_position(const Arguments& a, int index, int rank) {
  const int strip = divide(index, a.strip);
  const int within = index - strip * a.strip.value;
  const Divisor& height = strip + 1 == a.strips ? a.last_height : a.height;
  const int column = divide(within, height);
  const int row = strip * a.height.value + within - column * height.value;
  const int rank_m = a.cluster_n == 2 ? rank / 2 : rank, rank_n = a.cluster_n == 2 ? rank % 2 : 0;
  const int own = column * a.cluster_n + rank_n, group = divide(own, a.group_tiles);
  const int first = group * a.group_columns;
  return {(row * a.cluster_m + rank_m) * Tile::kRows, first + (own - group * a.group_tiles.value) * Tile::kYColumns,
          group, first + a.group_columns};
}

// Producer: one thread for x and one for w copy the tiles of this block's consumers. In a cluster, the blocks that need
// the same rows of x or w each multicast a part of these rows to all of the blocks. The part of a tile beyond a.m and
// a.n may contain any values, because they affect only rows and columns that y does not have.
template <class Tile, bool kIsX>
__device__ __forceinline__ void copy_tiles(const Arguments& a, const CUtensorMap& map, uint32_t shared, int rank,
                                           int cluster, int clusters) {
  constexpr uint32_t kBytes = kIsX ? Tile::kXBytes : Tile::kWBytes;
  constexpr bool kHalves = !kIsX && Tile::kGated;
  const int rank_m = a.cluster_n == 2 ? rank / 2 : rank, rank_n = a.cluster_n == 2 ? rank % 2 : 0;
  const int part = kIsX ? rank_n : rank_m, parts = kIsX ? a.cluster_n : a.cluster_m;
  const int part_rows = (kIsX ? Tile::kRows : Tile::kColumns) / parts;
  const uint16_t same_x = ((1 << a.cluster_n) - 1) << (rank_m * a.cluster_n);
  const uint16_t same_w = (a.cluster_m == 1 ? 1 : 1 | 1 << a.cluster_n) << rank_n;
  const uint32_t to = shared + (kIsX ? Tile::kX : Tile::kW) + part * part_rows * 128;
  Ring<Tile::kStages> at;
  for (int tile = cluster; tile < a.tiles; tile += clusters) {
    const TilePosition p = tile_position<Tile>(a, tile, rank);
    const int row = (kIsX ? p.row : p.column) + part * (kHalves ? a.n : part_rows);
    // In a map of groups, TMA stops with an error at images beyond the last one. A block without rows reads some
    // others.
    const int from = a.has_groups && row >= a.m ? 0 : row;
    const Pixel first = kIsX && a.is_convolution ? first_pixel(a.first, from) : Pixel{};
    Step s;
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step, at.advance(), s.advance(Tile::kDepth, a.channels, a.kernel_width)) {
      const uint32_t full = shared + Tile::kFull + at.stage * 8, into = to + at.stage * kBytes;
      barrier_wait(shared + Tile::kEmpty + at.stage * 8, at.parity ^ 1);
      barrier_expect(full, kIsX ? a.x_bytes : kBytes);
      const auto load = [&](auto... blocks) {
        if constexpr (!kIsX) {
          load_box(into, map, s.channel, s.position, row, full, blocks...);
        } else if (a.has_groups && a.has_rows) {
          load_pixels(into, map, s.channel, first, p.group, s.x * a.first.dilation_x, s.y * a.first.dilation_y, full,
                      blocks...);
        } else if (a.has_groups) {
          // The next row is the next image, and the next image is the next group.
          load_pixels(into, map, s.channel, {first.x, first.image, p.group}, s.x * a.first.dilation_x, 0, full,
                      blocks...);
        } else if (a.is_convolution && !a.has_rows) {
          load_positions(into, map, s.channel, first, s.x * a.first.dilation_x, full, blocks...);
        } else if (a.is_convolution) {
          load_pixels(into, map, s.channel, first, s.x * a.first.dilation_x, s.y * a.first.dilation_y, full, blocks...);
        } else {
          load_box(into, map, s.channel, row, full, blocks...);
        }
      };
      if (parts > 1) {
        load(kIsX ? same_x : same_w);
      } else {
        load();
        if constexpr (kHalves) {
          load_box(into + kBytes / 2, map, s.channel, s.position, row + a.n, full);
        }
      }
    }
  }
}

// Returns the first column of a chunk. The last chunk ends at the end of the tile and may overlap the previous chunk.
template <class Tile>
__device__ constexpr int chunk_column(int chunk) {
  constexpr int kLast = Tile::kYColumns - Tile::kChunk;
  return Tile::kChunk * chunk < kLast ? Tile::kChunk * chunk : kLast;
}

// d[64, kColumns] += x[64, 32 bytes] w[kColumns, 32 bytes]^T
template <class Element, int kColumns>
__device__ __forceinline__ void multiply(float (&d)[kColumns / 2], uint64_t x, uint64_t w, int accumulate) {
  if constexpr (sizeof(Element) == 4) {
    wgmma_tf32<kColumns>(d, x, w, accumulate);
  } else {
    wgmma<Element, kColumns>(d, x, w, accumulate);
  }
}

template <class Element, class Epilogue, class Tile>
__device__ __forceinline__ void multiply_tiles(const Arguments& a, const CUtensorMap& residual_map,
                                               const CUtensorMap& y_map, uint32_t shared, int rank, int cluster,
                                               int clusters) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
  const int group = warp / 4;
  const int blocks = a.cluster_m * a.cluster_n;
  const uint32_t staging = shared + Tile::kStaging + warp * Tile::kBuffers * Tile::kStagingBytes;
  const uint32_t loaded = shared + Tile::kLoaded + warp * Tile::kBuffers * 8;
  Ring<Tile::kBuffers> buffer;
  Ring<Tile::kStages> at;
  const auto release = [&](int stage) {
    const uint32_t empty = shared + Tile::kEmpty + stage * 8;
    if (blocks == 1) {
      if (lane == 0) {
        barrier_arrive(empty);
      }
    } else if (lane < blocks) {
      barrier_arrive(empty, lane);
    }
  };
  // Ping-pong: named barrier 1 + g starts the turn of group g. A group must not test the ring before its turn, because
  // the phase parity distinguishes a round only from the adjacent rounds.
  if (Tile::kPingPong && group == 1) {
    at.skip(a.steps);
    named_barrier_arrive(1, 256);
  }
  const int first = Tile::kPingPong ? cluster + group * clusters : cluster;
  const int step_tiles = Tile::kPingPong ? Tile::kGroups * clusters : clusters;
  const int first_band = Tile::kPingPong ? 0 : group * Tile::kBands;
  for (int tile = first; tile < a.tiles; tile += step_tiles) {
    const TilePosition p = tile_position<Tile>(a, tile, rank);
    const int row = p.row + first_band * 64 + warp % 4 * 16, thread_column = p.column + lane % 4 * 2;
    const auto load_residual = [&](int chunk, int to) {
      barrier_expect(loaded + to * 8, Tile::kStagingBytes);
      load_box(staging + to * Tile::kStagingBytes, residual_map, p.column + chunk_column<Tile>(chunk % Tile::kChunks),
               row + 64 * (chunk / Tile::kChunks), loaded + to * 8);
    };
    if (Tile::kResidual && lane == 0) {
      store_wait<0>();
#pragma unroll
      for (int i = 0; i < min(Tile::kBuffers, Tile::kWarpChunks); ++i) {
        load_residual(i, (buffer.stage + i) % Tile::kBuffers);
      }
    }
    __syncwarp();
    const Bias<Element, Tile> bias(a, thread_column);
    if constexpr (Tile::kPingPong) {
      named_barrier_wait(1 + group, 256);
    }
    float d[Tile::kBands][Tile::kColumns / 2];
    int previous = 0;
    for (int step = 0; step < a.steps; ++step) {
      barrier_wait(shared + Tile::kFull + at.stage * 8, at.parity);
      const uint64_t x = tile_descriptor(shared + Tile::kX + at.stage * Tile::kXBytes + first_band * 64 * 128);
      const uint64_t w = tile_descriptor(shared + Tile::kW + at.stage * Tile::kWBytes);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int band = 0; band < Tile::kBands; ++band) {
          // In units of 16 bytes: a product takes 32 bytes of each row, and 64 rows are 8192 bytes.
          multiply<Element, Tile::kColumns>(d[band], x + 2 * k + 512 * band, w + 2 * k, step > 0 || k > 0);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) {
        release(previous);
      }
      previous = at.stage;
      at.advance();
    }
    if constexpr (Tile::kPingPong) {
      named_barrier_arrive(2 - group, 256);
      at.skip(a.steps);
    }
    wgmma_wait<0>();
    release(previous);
#pragma unroll
    for (int i = 0; i < Tile::kWarpChunks; ++i) {
      const int band = i / Tile::kChunks, column = chunk_column<Tile>(i % Tile::kChunks);
      const uint32_t from = staging + buffer.stage * Tile::kStagingBytes;
      if constexpr (Tile::kResidual) {
        barrier_wait(loaded + buffer.stage * 8, buffer.parity);
      } else if (lane == 0) {
        store_wait<1>();
      }
      __syncwarp();
      finish<Epilogue, Tile>(a, &d[band][column / 2], bias, column / 8, from, lane);
      shared_fence();
      __syncwarp();
      if (a.y != nullptr) {
        store_rows<Element, Tile>(a, from, p.column + column, p.end, row + 64 * band, lane);
      } else if (lane == 0) {
        store_box(y_map, from, p.column + column, row + 64 * band);
        // The buffer of the chunk before this one is free once its store has read it.
        if (const int next = i - 1 + Tile::kBuffers; Tile::kResidual && i > 0 && next < Tile::kWarpChunks) {
          store_wait<1>();
          load_residual(next, (buffer.stage + Tile::kBuffers - 1) % Tile::kBuffers);
        }
      }
      buffer.advance();
    }
  }
  if (lane == 0) {
    store_wait<0>();
  }
}

template <class Element, class Epilogue, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    linear_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap residual_map, const __grid_constant__ CUtensorMap y_map,
                  const __grid_constant__ Arguments a) {
  extern __shared__ uint8_t memory[];
  // Swizzled tiles must start at multiples of 1024 bytes, and at the same address in every block of a cluster.
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  const int blocks = a.cluster_m * a.cluster_n;
  // A cluster has 1, 2 or 4 blocks.
  const int shift = blocks >> 1;
  const int rank = cluster_rank(), cluster = blockIdx.x >> shift, clusters = gridDim.x >> shift;
  if (threadIdx.x < Tile::kStages) {
    barrier_init(shared + Tile::kFull + threadIdx.x * 8, 2);
    barrier_init(shared + Tile::kEmpty + threadIdx.x * 8, blocks * 4 * (Tile::kPingPong ? 1 : Tile::kGroups));
    barrier_init_fence();
  }
  if (Tile::kResidual && threadIdx.x < Tile::kWarps * Tile::kBuffers) {
    barrier_init(shared + Tile::kLoaded + threadIdx.x * 8, 1);
    barrier_init_fence();
  }
  if (threadIdx.x == 96) {
    prefetch(x_map);
    prefetch(w_map);
    if constexpr (Tile::kResidual) {
      prefetch(residual_map);
    }
    prefetch(y_map);
  }
  if (blocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  wait_for_previous_grid();
  launch_dependent_grids();
  if (threadIdx.x < 128) {
    if constexpr (Tile::kGroups == 2) {
      warpgroup_reg_dealloc<40>();
    }
    if (threadIdx.x == 0) {
      copy_tiles<Tile, true>(a, x_map, shared, rank, cluster, clusters);
    } else if (threadIdx.x == 32) {
      copy_tiles<Tile, false>(a, w_map, shared, rank, cluster, clusters);
    }
    __syncwarp();
  } else {
    if constexpr (Tile::kGroups == 2) {
      warpgroup_reg_alloc<232>();
    }
    multiply_tiles<Element, Epilogue, Tile>(a, residual_map, y_map, shared, rank, cluster, clusters);
    __syncwarp();
  }
  // A block must not exit while its peers still write to its shared memory.
  if (blocks > 1) {
    cluster_sync();
  }
}

}  // namespace fuseconv::linear::sm90
