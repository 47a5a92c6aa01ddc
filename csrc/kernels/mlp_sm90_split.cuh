// The layers of kernels/mlp.h in f16 and bf16 for Hopper (sm_90a), for widths from 129 to 256 and for so few rows that
// most SMs would have no tile with mlp_sm90.cuh. Two SMs share a tile, and each loads half of the weights.
//
// A cluster of two blocks takes 64 rows. A block computes half of the columns of every layer, and each of its two
// warpgroups half of those columns: 64 columns, which are one box. If the values of a layer are the operand of the next
// layer, a warpgroup writes its box to the shared memory of its own block and copies it to the other block. Two buffers
// of four boxes alternate, and x fills the first buffer. No buffer is overwritten before all warpgroups have read it,
// because the boxes in the other buffer, for which a warpgroup waits, were computed from it.
#pragma once

#include "kernels/mlp_sm90_layer.cuh"

namespace fuseconv::cuda::mlp {

// The layout of shared memory. Offsets are in bytes from the first multiple of 1024.
struct Split {
  static constexpr int kBoxes = 4, kStages = 8, kColumns = 128;
  static constexpr int kConsumers = 256, kThreads = kConsumers + 32;
  static constexpr uint32_t kWeightBytes = kColumns * 128;
  static constexpr uint32_t kValues = kStages * kWeightBytes, kBias = kValues + 2 * kBoxes * kBoxBytes;
  static constexpr uint32_t kWeightFull = kBias + 3 * kColumns * 2, kWeightEmpty = kWeightFull + kStages * 8;
  static constexpr uint32_t kValuesFull = kWeightEmpty + kStages * 8;
  static constexpr uint32_t kBytes = kValuesFull + 2 * kBoxes * 8 + 1024;
  static_assert(kBytes <= 227 * 1024);

  static __device__ __forceinline__ uint32_t box(int buffer, int number) {
    return kValues + (buffer * kBoxes + number) * kBoxBytes;
  }
  static __device__ __forceinline__ uint32_t box_full(int buffer, int number) {
    return kValuesFull + (buffer * kBoxes + number) * 8;
  }
  // The steps along k start with the steps whose values this block computes.
  static __device__ __forceinline__ int step(int i, int rank) { return (i + 2 * rank) % kBoxes; }
};

// Producer: copies the weights of this block's columns, and copies half of the boxes of x to both blocks.
__device__ __forceinline__ void copy_operands(const Arguments& a, uint32_t shared, int rank, int tile) {
  Ring<Split::kStages> ring;
  for (int layer = 0; layer < a.layers; ++layer) {
    for (int i = 0; i < Split::kBoxes; ++i) {
      const int step = Split::step(i, rank);
      if (step < a.layer[layer].steps) {
        if (layer == 0 && i < 2) {
          load_box(shared + Split::box(0, step), a.x, step * 64, tile * 64, shared + Split::box_full(0, step), 0b11);
        }
        const uint32_t full = shared + Split::kWeightFull + ring.stage * 8;
        barrier_wait(shared + Split::kWeightEmpty + ring.stage * 8, ring.parity ^ 1);
        barrier_expect(full, Split::kWeightBytes);
        load_box(shared + ring.stage * Split::kWeightBytes, a.weight[layer], step * 64, rank * Split::kColumns, full);
        ring.advance();
      }
    }
  }
}

// Runs a consumer warpgroup.
template <class Element>
__device__ __forceinline__ void run_layers(const Arguments& a, uint32_t shared, const Element* bias, int rank,
                                           int tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
  const int own = 2 * rank + group;
  Ring<Split::kStages> weights;
  for (int layer = 0; layer < a.layers; ++layer) {
    const int buffer = layer % 2, steps = a.layer[layer].steps;
    const auto release = [&](int stage) {
      if (lane == 0) {
        barrier_arrive(shared + Split::kWeightEmpty + stage * 8);
      }
    };
    float d[32];
    int done = 0, previous = 0;
#pragma unroll
    for (int i = 0; i < Split::kBoxes; ++i) {
      const int step = Split::step(i, rank);
      // Also waits for a box that this layer does not use: once all boxes have arrived, all other warpgroups have left
      // the previous buffer, and no copy is still in flight.
      barrier_wait(shared + Split::box_full(buffer, step), layer / 2);
      if (step < steps) {
        barrier_wait(shared + Split::kWeightFull + weights.stage * 8, weights.parity);
        const uint64_t x = tile_descriptor(shared + Split::box(buffer, step));
        const uint64_t w = tile_descriptor(shared + weights.stage * Split::kWeightBytes + group * kBoxBytes);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma<Element, 64>(d, x + 2 * k, w + 2 * k, done > 0 || k > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (done++ > 0) {
          release(previous);
        }
        previous = weights.stage;
        weights.advance();
      }
    }
    wgmma_wait<0>();
    release(previous);
    uint32_t h[4][4];
    activate<Element, 64>(a.layer[layer].activation, h, d, bias + layer * Split::kColumns + group * 64 + lane % 4 * 2);
    const bool last = layer + 1 == a.layers;
    const int outputs = a.layer[layer].outputs, row = tile * 64 + warp % 4 * 16;
    if (!last && outputs < (own + 1) * 64) {
      clear_beyond(h, outputs - own * 64, lane % 4 * 2);
    }
    if (last && a.y_by_element != nullptr) {
      return store_by_element(a, h, row, own * 64, lane);
    }
    const int next = buffer ^ 1;
    const uint32_t box = shared + Split::box(next, own), strip = box + warp % 4 * kStripBytes;
    write_strip(h, 0, strip, lane);
    shared_fence();
    if (last) {
      __syncwarp();
      if (lane == 0 && own * 64 < outputs) {
        store_box(a.y, strip, own * 64, row);
        store_wait<0>();
      }
    } else {
      named_barrier_wait(1 + group, 128);
      if (threadIdx.x % 128 == 0) {
        barrier_arrive(shared + Split::box_full(next, own));
        barrier_expect(shared + Split::box_full(next, own ^ 2), kBoxBytes);
        copy_to_block(box, kBoxBytes, shared + Split::box_full(next, own), rank ^ 1);
      }
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(Split::kThreads, 1) split_layers_kernel(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  // Swizzled tiles must start at multiples of 1024 bytes, at the same address in both blocks.
  uint8_t* const base = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const uint32_t shared = shared_address(base);
  const int rank = static_cast<int>(cluster_rank()), tile = static_cast<int>(blockIdx.x / 2);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Split::kStages; ++stage) {
      barrier_init(shared + Split::kWeightFull + stage * 8, 1);
      barrier_init(shared + Split::kWeightEmpty + stage * 8, Split::kConsumers / 32);
    }
    for (int box = 0; box < 2 * Split::kBoxes; ++box) {
      barrier_init(shared + Split::kValuesFull + box * 8, 1);
    }
    barrier_init_fence();
    for (int box = 0; box < Split::kBoxes; ++box) {
      barrier_expect(shared + Split::box_full(0, box), box < a.layer[0].steps ? kBoxBytes : 0);
    }
  }
  __syncthreads();
  cluster_sync();
  wait_for_previous_grid();
  launch_dependent_grids();
  if (threadIdx.x >= Split::kConsumers) {
    if (threadIdx.x == Split::kConsumers) {
      copy_operands(a, shared, rank, tile);
    }
  } else {
    Element* bias = reinterpret_cast<Element*>(base + Split::kBias);
    load_bias<Element, Split::kColumns>(a, bias, rank * Split::kColumns, threadIdx.x);
    run_layers(a, shared, bias, rank, tile);
  }
  __syncwarp();
  // A block must not exit before the other block has received the boxes that this block sends.
  cluster_sync();
#endif
}

}  // namespace fuseconv::cuda::mlp
