// The layers of kernels/mlp.h in f16 and bf16 for Hopper (sm_90a).
//
// The grid is persistent. A warpgroup takes 64 rows through all layers in registers: the accumulators of one layer have
// the register layout of the A operand of wgmma in the next layer. Two warpgroups work in ping-pong, one layer at a
// time, so that the activations of one overlap the products of the other. A producer copies the weights to a ring of
// steps of 64 along k. The ring holds all layers if they fit (widths up to 128), and is otherwise refilled from L2.
// Both warpgroups use each step, so that one copy serves 128 rows.
#pragma once

#include "kernels/mlp_sm90_layer.cuh"

namespace fuseconv::cuda::mlp {

// The layout of shared memory. Offsets are in bytes from the first multiple of 1024.
template <int width>
struct Shape {
  static constexpr int kWidth = width, kSteps = kWidth / 64, kThreads = 384;
  static constexpr int kStages = kWidth == 256 ? 4 : kSteps * 3;  // stages in the ring of weights
  static constexpr int kSlots = 4 / kSteps;                       // tiles of x in flight per warpgroup
  static constexpr uint32_t kWeightBytes = kWidth * 128, kSlotBytes = kSteps * kBoxBytes;
  static constexpr uint32_t kX = kStages * kWeightBytes, kStaging = kX + 2 * kSlots * kSlotBytes;
  static constexpr uint32_t kBias = kStaging + 8 * 2 * kStripBytes;
  static constexpr uint32_t kWeightFull = kBias + 3 * kWidth * 2, kWeightEmpty = kWeightFull + kStages * 8;
  static constexpr uint32_t kXFull = kWeightEmpty + kStages * 8, kXEmpty = kXFull + 2 * kSlots * 8;
  static constexpr uint32_t kBytes = kXEmpty + 2 * kSlots * 8 + 1024;
  static_assert(kBytes <= 227 * 1024);
};

// Producer: copies the weights, one step of 64 columns of a layer at a time, either once or for each round of tiles.
template <class S>
__device__ __forceinline__ void copy_weights(const Arguments& a, uint32_t shared, int rounds) {
  Ring<S::kStages> ring;
  const bool resident = a.steps <= S::kStages;
  for (int round = 0; round < (resident ? 1 : rounds); ++round) {
    for (int layer = 0; layer < a.layers; ++layer) {
      for (int step = 0; step < a.layer[layer].steps; ++step, ring.advance()) {
        const uint32_t full = shared + S::kWeightFull + ring.stage * 8;
        barrier_wait(shared + S::kWeightEmpty + ring.stage * 8, ring.parity ^ 1);
        barrier_expect(full, S::kWeightBytes);
        load_box(shared + ring.stage * S::kWeightBytes, a.weight[layer], step * 64, 0, full);
      }
    }
  }
}

// Producer: copies the tiles of x for both warpgroups.
template <class S>
__device__ __forceinline__ void copy_x(const Arguments& a, uint32_t shared, int rounds) {
  Ring<S::kSlots> ring;
  const int steps = a.layer[0].steps;
  for (int round = 0; round < rounds; ++round, ring.advance()) {
    for (int group = 0; group < 2; ++group) {
      const int tile = (2 * round + group) * gridDim.x + blockIdx.x, slot = group * S::kSlots + ring.stage;
      if (tile < a.tiles) {
        const uint32_t full = shared + S::kXFull + slot * 8;
        barrier_wait(shared + S::kXEmpty + slot * 8, ring.parity ^ 1);
        barrier_expect(full, steps * kBoxBytes);
        for (int step = 0; step < steps; ++step) {
          load_box(shared + S::kX + slot * S::kSlotBytes + step * kBoxBytes, a.x, step * 64, tile * 64, full);
        }
      }
    }
  }
}

// Writes the 16 rows of one warp, starting at `row`.
template <class Element, class S>
__device__ __forceinline__ void store(const Arguments& a, const uint32_t (&h)[S::kWidth / 16][4], int row,
                                      uint32_t staging, int& buffer, int lane) {
  if (a.y_by_element != nullptr) {
    return store_by_element(a, h, row, 0, lane);
  }
  const int outputs = a.layer[a.layers - 1].outputs;
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    if (step * 64 < outputs) {
      const uint32_t from = staging + buffer * kStripBytes;
      buffer ^= 1;
      if (lane == 0) {
        store_wait<1>();
      }
      __syncwarp();
      write_strip(h, step * 4, from, lane);
      shared_fence();
      __syncwarp();
      if (lane == 0) {
        store_box(a.y, from, step * 64, row);
      }
    }
  }
}

// Runs a consumer warpgroup.
template <class Element, class S>
__device__ __forceinline__ void run_tiles(const Arguments& a, uint32_t shared, const Element* bias, int rounds) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = warp / 4;
  const bool resident = a.steps <= S::kStages;
  const uint32_t staging = shared + S::kStaging + warp * 2 * kStripBytes;
  // The lane reads row lane % 16 of this warp's rows in a box, and 16 bytes of that row, before swizzling.
  const uint32_t x_row = (warp % 4 * 16 + lane % 16) * 128;
  int buffer = 0;
  Ring<S::kStages> weights;
  Ring<S::kSlots> x;
  // Ping-pong: named barrier 1 + g starts the turn of group g.
  if (group == 1) {
    named_barrier_arrive(1, 256);
  }
  for (int round = 0; round < rounds; ++round, x.advance()) {
    const int tile = (2 * round + group) * gridDim.x + blockIdx.x;
    // In the last round there may be no tile for the second group; the first group then works alone.
    const bool alone = static_cast<int>((2 * round + 1) * gridDim.x + blockIdx.x) >= a.tiles;
    if (tile >= a.tiles) {
      break;
    }
    const int slot = group * S::kSlots + x.stage;
    uint32_t h[S::kWidth / 16][4];
    barrier_wait(shared + S::kXFull + slot * 8, x.parity);
#pragma unroll
    for (int k = 0; k < S::kWidth / 16; ++k) {
      load_matrices(h[k], shared + S::kX + slot * S::kSlotBytes + k / 4 * kBoxBytes + x_row +
                              (((k % 4 * 2 + lane / 16) ^ (lane % 8)) << 4));
    }
    if (resident) {
      weights = {};
    }
    const auto release = [&](int stage) {
      if (!resident && lane == 0) {
        barrier_arrive_many(shared + S::kWeightEmpty + stage * 8, alone ? 2 : 1);
      }
    };
#pragma unroll 1
    for (int layer = 0; layer < a.layers; ++layer) {
      const int steps = a.layer[layer].steps;
      float d[S::kWidth / 2];
      int previous = 0;
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        if (step < steps) {
          if (!alone && step == 0) {
            named_barrier_wait(1 + group, 256);
          }
          barrier_wait(shared + S::kWeightFull + weights.stage * 8, weights.parity);
          const uint64_t tile_of_weights = tile_descriptor(shared + weights.stage * S::kWeightBytes);
          wgmma_begin();
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            wgmma<Element, S::kWidth>(d, h[step * 4 + k], tile_of_weights + 2 * k, step > 0 || k > 0);
          }
          wgmma_commit();
          if (!alone && step + 1 == steps) {
            named_barrier_arrive(2 - group, 256);
          }
          wgmma_wait<1>();
          if (step > 0) {
            release(previous);
          }
          previous = weights.stage;
          weights.advance();
        }
      }
      wgmma_wait<0>();
      release(previous);
      // Only now has x been read: an arrival at a barrier overtakes an ldmatrix that the other warpgroup's products
      // delay, and TMA would overwrite the slot.
      if (layer == 0 && lane == 0) {
        barrier_arrive(shared + S::kXEmpty + slot * 8);
      }
      activate<Element, S::kWidth>(a.layer[layer].activation, h, d, bias + layer * S::kWidth + lane % 4 * 2);
      if (layer + 1 < a.layers && a.layer[layer].outputs < S::kWidth) {
        clear_beyond(h, a.layer[layer].outputs, lane % 4 * 2);
      }
    }
    store<Element, S>(a, h, tile * 64 + warp % 4 * 16, staging, buffer, lane);
  }
  if (lane == 0) {
    store_wait<0>();
  }
}

template <class Element, class S>
__global__ void __launch_bounds__(S::kThreads, 1) layers_kernel(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  // Swizzled tiles must start at multiples of 1024 bytes.
  uint8_t* const base = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const uint32_t shared = shared_address(base);
  const int rounds = (a.tiles - static_cast<int>(blockIdx.x) + 2 * gridDim.x - 1) / (2 * gridDim.x);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(shared + S::kWeightFull + stage * 8, 1);
      barrier_init(shared + S::kWeightEmpty + stage * 8, 8);
    }
    for (int slot = 0; slot < 2 * S::kSlots; ++slot) {
      barrier_init(shared + S::kXFull + slot * 8, 1);
      barrier_init(shared + S::kXEmpty + slot * 8, 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_grid();
  launch_dependent_grids();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 0) {
      copy_weights<S>(a, shared, rounds);
    } else if (threadIdx.x == 32) {
      copy_x<S>(a, shared, rounds);
    }
  } else {
    warpgroup_reg_alloc<232>();
    Element* bias = reinterpret_cast<Element*>(base + S::kBias);
    load_bias<Element, S::kWidth>(a, bias, 0, threadIdx.x - 128);
    run_tiles<Element, S>(a, shared, bias, rounds);
  }
#endif
}

}  // namespace fuseconv::cuda::mlp
