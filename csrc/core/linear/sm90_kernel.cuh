// y[m, n] = act(sum_k x[m, k] w[n, k] + bias[n]) + residual[m, n] in f16 and bf16, for Hopper (sm_90a).
//
// A persistent grid. In each block one warp copies tiles of x and w to a ring in shared memory, and the warpgroups that
// multiply share each tile's columns and split its rows. They keep no step with one another: each runs as far ahead of
// the other as the ring is long, so that while one computes its activations the other keeps the tensor cores busy. Each
// warp turns its own 16 rows into y, 64 columns at a time, with no barrier wider than itself.
#pragma once

#include "core/linear/activation.cuh"
#include "core/linear/sm90_arguments.h"
#include "core/linear/sm90_instructions.cuh"
#include "core/linear/sm90_tile.h"

namespace fuseconv::linear::sm90 {

// The first row and column of this block's part of a cluster tile.
struct Place {
  int row, column;
};

template <class Tile>
__device__ __forceinline__ Place place(const Arguments& a, int index, int rank) {
  const int first = index / (a.group * a.tiles_n) * a.group;
  const int height = min(a.group, a.tiles_m - first);
  const int within = index - first * a.tiles_n;
  const int row = first + within % height;
  const int column = within / height;
  return {(row * a.cluster_m + rank / a.cluster_n) * Tile::kRows,
          (column * a.cluster_n + rank % a.cluster_n) * Tile::kColumns};
}

// A position in the ring, and the parity of the round.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread: copies the tiles of x and w that this block's warpgroups need. In a cluster the blocks with the same rows
// of y each copy a part of x to all of them, and those with the same columns a part of w.
template <class Tile>
__device__ __forceinline__ void copy_tiles(const Arguments& a, const CUtensorMap& x_map, const CUtensorMap& w_map,
                                           uint32_t shared, int rank, int cluster, int clusters) {
  const int rank_m = rank / a.cluster_n, rank_n = rank % a.cluster_n;
  const int x_part = Tile::kRows / a.cluster_n, w_part = Tile::kColumns / a.cluster_m;
  const bool alone = a.cluster_m * a.cluster_n == 1;
  const uint16_t same_rows = ((1 << a.cluster_n) - 1) << (rank_m * a.cluster_n);
  const uint16_t same_columns = (a.cluster_m == 1 ? 1 : 1 | 1 << a.cluster_n) << rank_n;
  const int tiles = a.tiles_m * a.tiles_n;
  Cursor<Tile::kStages> at;
  for (int tile = cluster; tile < tiles; tile += clusters) {
    const Place p = place<Tile>(a, tile, rank);
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step, at.advance()) {
      const uint32_t full = shared + Tile::kFull + at.stage * 8;
      barrier_wait(shared + Tile::kEmpty + at.stage * 8, at.parity ^ 1);
      barrier_expect(full, Tile::kXBytes + Tile::kWBytes);
      const uint32_t x = shared + Tile::kX + at.stage * Tile::kXBytes + rank_n * x_part * 128;
      const uint32_t w = shared + Tile::kW + at.stage * Tile::kWBytes + rank_m * w_part * 128;
      const int column = step * Tile::kDepth;
      if (alone) {
        load_box(x, x_map, column, p.row, full);
        load_box(w, w_map, column, p.column, full);
      } else {
        load_box(x, x_map, column, p.row + rank_n * x_part, full, same_rows);
        load_box(w, w_map, column, p.column + rank_m * w_part, full, same_columns);
      }
    }
  }
}

// What a thread adds to the 64 columns that its warp turns into y next: its 2 of every 8 columns, rows r and r + 8.
template <class Element, bool kResidual>
struct Addends {
  uint32_t bias[8], residual[kResidual ? 16 : 1];

  __device__ __forceinline__ void load(const Arguments& a, int row, int column) {
    const int biased = a.bias != nullptr ? a.n : 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      bias[j] = load_pair(static_cast<const Element*>(a.bias) + column + 8 * j, column + 8 * j < biased);
    }
    if constexpr (kResidual) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int r = row + 8 * (j % 2), c = column + 8 * (j / 2);
        residual[j] =
            load_pair(static_cast<const Element*>(a.residual) + r * a.residual_stride + c, r < a.m && c < a.n);
      }
    }
  }
};

// 16 rows by 64 columns of one warp: accumulators to y, through `shared`, 16 rows of 128 bytes swizzled by 128 bytes.
template <class Element, class Epilogue, bool kResidual>
__device__ __forceinline__ void finish(const float* accumulators, const Addends<Element, kResidual>& addends,
                                       uint32_t shared, int lane) {
  const int row = lane % 16;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = j + i / 2, half = i % 2;
      const float2 bias = unpack(addends.bias[column], Element());
      const float* d = accumulators + column * 4 + half * 2;
      float low = Epilogue::apply(fmaf(d[0], Epilogue::kScale, bias.x * Epilogue::kScale));
      float high = Epilogue::apply(fmaf(d[1], Epilogue::kScale, bias.y * Epilogue::kScale));
      if constexpr (kResidual) {
        const float2 residual = unpack(addends.residual[column * 2 + half], Element());
        low += residual.x;
        high += residual.y;
      }
      packed[i] = pack(low, high, Element());
    }
    store_matrices(shared + row * 128 + (((j + lane / 16) ^ (row % 8)) << 4), packed[0], packed[1], packed[2],
                   packed[3]);
  }
}

template <class Element, class Epilogue, bool kResidual, class Tile>
__device__ __forceinline__ void multiply_tiles(const Arguments& a, const CUtensorMap& y_map, uint32_t shared, int rank,
                                               int cluster, int clusters) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
  const int group = warp / 4;
  const int tiles = a.tiles_m * a.tiles_n;
  const int blocks = a.cluster_m * a.cluster_n;
  const uint32_t staging = shared + Tile::kStaging + warp * 2 * Tile::kStagingBytes;
  int buffer = 0;
  Cursor<Tile::kStages> at;
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
  // Once: the second warpgroup starts when the first has been given `lead` tiles of k.
  int lead = Tile::kGroups == 2 ? min(min(a.lead, Tile::kStages), a.steps) : 0;
  if (lead > 0 && group == 1) {
    named_barrier_wait(1, 256);
  }
  for (int tile = cluster; tile < tiles; tile += clusters) {
    const Place p = place<Tile>(a, tile, rank);
    float d[Tile::kBands][Tile::kColumns / 2];
    int previous = 0;
    for (int step = 0; step < a.steps; ++step) {
      barrier_wait(shared + Tile::kFull + at.stage * 8, at.parity);
      const uint64_t x =
          tile_descriptor(shared + Tile::kX + at.stage * Tile::kXBytes + group * Tile::kBands * 64 * 128);
      const uint64_t w = tile_descriptor(shared + Tile::kW + at.stage * Tile::kWBytes);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < Tile::kDepth / 16; ++k) {
#pragma unroll
        for (int band = 0; band < Tile::kBands; ++band) {
          // 16 columns are 32 bytes and 64 rows 8192, in units of 16.
          wgmma<Element, Tile::kColumns>(d[band], x + 2 * k + 512 * band, w + 2 * k, step > 0 || k > 0);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) {
        release(previous);
      }
      previous = at.stage;
      at.advance();
      if (lead > 0 && --lead == 0 && group == 0) {
        named_barrier_arrive(1, 256);
      }
    }
    const int row = p.row + (group * Tile::kBands * 4 + warp % 4) * 16;
    const int thread_row = row + lane / 4, thread_column = p.column + lane % 4 * 2;
    Addends<Element, kResidual> addends;
    addends.load(a, thread_row, thread_column);
    wgmma_wait<0>();
    release(previous);
#pragma unroll
    for (int band = 0; band < Tile::kBands; ++band) {
#pragma unroll
      for (int chunk = 0; chunk < Tile::kColumns / 64; ++chunk) {
        const Addends<Element, kResidual> now = addends;
        if (chunk + 1 < Tile::kColumns / 64) {
          addends.load(a, thread_row + 64 * band, thread_column + 64 * (chunk + 1));
        } else if (band + 1 < Tile::kBands) {
          addends.load(a, thread_row + 64 * (band + 1), thread_column);
        }
        const uint32_t to = staging + buffer * Tile::kStagingBytes;
        buffer ^= 1;
        if (lane == 0) {
          store_wait<1>();
        }
        __syncwarp();
        finish<Element, Epilogue, kResidual>(&d[band][chunk * 32], now, to, lane);
        shared_fence();
        __syncwarp();
        if (lane == 0) {
          store_box(y_map, to, p.column + 64 * chunk, row + 64 * band);
        }
      }
    }
  }
  if (lane == 0) {
    store_wait<0>();
  }
}

template <class Element, class Epilogue, bool kResidual, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    linear_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap y_map, const __grid_constant__ Arguments a) {
  extern __shared__ uint8_t memory[];
  // Swizzled tiles start at multiples of 1024 bytes, at the same address in every block of a cluster.
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  const int blocks = a.cluster_m * a.cluster_n;
  const int rank = cluster_rank(), cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared + Tile::kFull + stage * 8, 1);
      barrier_init(shared + Tile::kEmpty + stage * 8, blocks * Tile::kGroups * 4);
    }
    barrier_init_fence();
    prefetch(x_map);
    prefetch(w_map);
    prefetch(y_map);
  }
  cluster_sync();
  wait_for_previous_grid();
  allow_next_grid();
  if (threadIdx.x < 128) {
    if constexpr (Tile::kGroups == 2) {
      give_registers<40>();
    }
    if (threadIdx.x == 0) {
      copy_tiles<Tile>(a, x_map, w_map, shared, rank, cluster, clusters);
    }
    __syncwarp();
  } else {
    if constexpr (Tile::kGroups == 2) {
      take_registers<232>();
    }
    multiply_tiles<Element, Epilogue, kResidual, Tile>(a, y_map, shared, rank, cluster, clusters);
    __syncwarp();
  }
  // A block stays until its peers no longer write to its memory.
  cluster_sync();
}

}  // namespace fuseconv::linear::sm90
