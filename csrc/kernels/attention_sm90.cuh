// Attention for Hopper (sm_90a) in f16 and bf16 with f32 accumulators. The grid is persistent; the work of a block is
// to compute 128 queries of a head. A producer thread copies tiles of keys and their values with TMA to a ring in
// shared memory, also those of the next work, and each of two consumer warpgroups multiplies 64 queries by them. The
// softmax is computed while the scores of a tile are in registers (Dao et al., "FlashAttention", 2022); the Tensor
// Cores compute the scores of the next tile together with the weighted sum of the values of the last one, and one
// warpgroup's products while the other computes its softmax (Shah et al., "FlashAttention-3", 2024). Nothing depends on
// the sizes but the arguments, so that a new size needs no preparation.
//
// Lane l of warp w of a warpgroup holds the scores of rows 16 w + l / 4 and 8 rows further, in columns 2 (l % 4) and
// 2 (l % 4) + 1 of every 8 keys, which is also how the second product takes its left operand (PTX ISA, wgmma).
#pragma once

#include <type_traits>

#include "arch/sm90_wgmma.cuh"
#include "gemm/ring.cuh"
#include "kernels/attention_sm90_mask.cuh"
#include "kernels/online_softmax.cuh"

namespace fuseconv::cuda::attention_sm90_kernel {

using linear::Ring;

// Producer: one thread copies the queries of each work, and the keys and values tile by tile.
template <class S>
__device__ __forceinline__ void copy_tiles(const Arguments& a, uint32_t shared) {
  Ring<kWorks> queries;
  Ring<S::kStages> at;
  Ring<S::kMaskStages> masks;
#pragma unroll 1
  for (int round = 0, index = work_index(0); index < a.works; index = work_index(++round), queries.advance()) {
    const Work w = work_of<S>(a, index);
    const auto copy = [&](Operand operand, int row, uint32_t to, uint32_t part_bytes, uint32_t full, uint32_t empty,
                          uint32_t parity) {
      barrier_wait(empty, parity ^ 1);
      barrier_expect(full, S::kParts * part_bytes);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        load_box(to + part * part_bytes, a.maps[operand], Box(a, w, operand, row, part * 64).at, full);
      }
    };
    copy(kQ, w.query, shared + S::kQueryTiles + queries.stage * S::kQueryBytes, S::kQueryPart,
         shared + S::kQueriesFull + queries.stage * 8, shared + S::kQueriesEmpty + queries.stage * 8, queries.parity);
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; ++tile, at.advance()) {
      const uint32_t offset = at.stage * S::kTileBytes, barrier = shared + at.stage * 8;
      copy(kK, tile * S::kKeys, shared + S::kKeyTiles + offset, S::kKeyPart, barrier + S::kKeysFull,
           barrier + S::kKeysEmpty, at.parity);
      if (S::kMasked && a.mask_rows > 0) {
        const uint32_t full = shared + S::kMasksFull + masks.stage * 8;
        const int row = a.mask_rows == 1 ? 0 : w.query;
        barrier_wait(shared + S::kMasksEmpty + masks.stage * 8, masks.parity ^ 1);
        barrier_expect(full, a.mask_rows * S::kMaskParts * kRowBytes);
#pragma unroll
        for (int part = 0; part < S::kMaskParts; ++part) {
          load_box(shared + S::kMaskTiles + masks.stage * S::kMaskBytes + part * S::kMaskPart, a.maps[kMask],
                   Box(a, w, kMask, row, tile * S::kKeys + part * 64).at, full);
        }
        masks.advance();
      }
      copy(kV, tile * S::kKeys, shared + S::kValueTiles + offset, S::kKeyPart, barrier + S::kValuesFull,
           barrier + S::kValuesEmpty, at.parity);
    }
  }
}

// Consumer: a warpgroup computes 64 queries of each work.
template <class T, class S>
__device__ __forceinline__ void attend(const Arguments& a, uint32_t shared) {
  constexpr int kKeys = S::kKeys, kSteps = kKeys / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = warp / 4;
  float s[kKeys / 2], y[S::kColumns / 2], old[2];
  uint32_t p[kSteps][4];
  Ring<kWorks> queries;
  Ring<S::kStages> keys, values;
  Ring<S::kMaskStages> masks;
  Work w{};
  OnlineSoftmax softmax;

  // Ping-pong: named barrier 1 + g starts the turn of group g to issue its products.
  const auto take_turn = [&] { named_barrier_wait(1 + group, 128 * kGroups); };
  const auto pass_turn = [&] { named_barrier_arrive(2 - group, 128 * kGroups); };
  // s = q k^T. Descriptors are in units of 16 bytes; a step takes 32 bytes of each row.
  const auto multiply_keys = [&] {
    barrier_wait(shared + S::kKeysFull + keys.stage * 8, keys.parity);
    wgmma_begin();
    const uint64_t own =
        tile_descriptor(shared + S::kQueryTiles + queries.stage * S::kQueryBytes + group * 64 * kRowBytes);
    const uint64_t tile = tile_descriptor(shared + S::kKeyTiles + keys.stage * S::kTileBytes);
#pragma unroll
    for (int step = 0; step < S::kColumns / 16; ++step) {
      const int part = step / 4, within = step % 4 * 2;
      wgmma<T, kKeys>(s, own + part * (S::kQueryPart / 16) + within, tile + part * (S::kKeyPart / 16) + within,
                      step > 0);
    }
    wgmma_commit();
  };
  // y += p v. A step takes 16 rows.
  const auto multiply_values = [&] {
    barrier_wait(shared + S::kValuesFull + values.stage * 8, values.parity);
    wgmma_begin();
    const uint64_t tile = rows_descriptor(shared + S::kValueTiles + values.stage * S::kTileBytes, S::kKeyPart);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_rows<T, S::kColumns>(y, p[step], tile + step * (16 * kRowBytes / 16), 1);
    }
    wgmma_commit();
  };
  const auto release = [&](uint32_t empty, auto& ring) {
    if (lane == 0) {
      barrier_arrive(shared + empty + ring.stage * 8);
    }
    ring.advance();
  };
  const auto add_mask = [&](const uint32_t (&pairs)[kKeys / 8][2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const float2 added = arch::unpack(pairs[i / 2][i % 2], T{});
      s[2 * i] = s[2 * i] * a.scale + added.x;
      s[2 * i + 1] = s[2 * i + 1] * a.scale + added.y;
    }
  };
  // Hides keys that do not exist, and those behind the query if attention is causal.
  const auto hide = [&](int first) {
    const int warp_row = w.query + warp * 16;
    if (first + kKeys > (a.is_causal ? min(a.keys, warp_row + 1) : a.keys)) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int column = first + i / 4 * 8 + lane % 4 * 2 + i % 2, row = warp_row + lane / 4 + i / 2 % 2 * 8;
        s[i] = column < (a.is_causal ? min(a.keys, row + 1) : a.keys) ? s[i] : -INFINITY;
      }
    }
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      p[i / 4][i % 4] = arch::pack(s[2 * i], s[2 * i + 1], T{});
    }
  };

  const T* mask = nullptr;
  // Replaces the scores of a tile by weights, once `pending` products at most are not finished.
  const auto weigh = [&]<int kPending>(int tile, std::integral_constant<int, kPending>) {
    [[maybe_unused]] uint32_t pairs[kKeys / 8][2];
    if constexpr (S::kMasked) {
      if (a.mask_rows > 0) {
        barrier_wait(shared + S::kMasksFull + masks.stage * 8, masks.parity);
        const int first = a.mask_rows == 1 ? 0 : warp * 16 + lane % 16;
        load_mask_tile(shared + S::kMaskTiles + masks.stage * S::kMaskBytes + first * kRowBytes, S::kMaskPart,
                       first % 8, lane, pairs);
      } else {
        load_mask(a, mask, w.query + warp * 16 + lane / 4, tile * kKeys + lane % 4 * 2, pairs);
      }
    }
    wgmma_wait<kPending>();
    hold(s);
    release(S::kKeysEmpty, keys);
    if constexpr (S::kMasked) {
      add_mask(pairs);
      hold(s);  // an arrival overtakes an ldmatrix whose result was not used
      if (a.mask_rows > 0) {
        release(S::kMasksEmpty, masks);
      }
    }
    hide(tile * kKeys);
    const auto at = [&](int row, int i) -> float& { return s[i / 2 * 4 + row * 2 + i % 2]; };
    softmax.weigh<kKeys / 4>(at, S::kMasked ? 1.0f : a.scale, old);
  };
  // Stores the results by way of the tile of the queries, which all warps of the group have read.
  const auto store = [&] {
    uint32_t results[S::kColumns / 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float share = softmax.share(half);
#pragma unroll
      for (int j = 0; j < S::kColumns / 8; ++j) {
        results[2 * j + half] = arch::pack(y[4 * j + 2 * half] * share, y[4 * j + 2 * half + 1] * share, T{});
      }
    }
    named_barrier_wait(3 + group, 128);
    const uint32_t own = shared + S::kQueryTiles + queries.stage * S::kQueryBytes + warp * 16 * kRowBytes;
#pragma unroll
    for (int step = 0; step < S::kColumns / 16; ++step) {
      const uint32_t to = own + step / 4 * S::kQueryPart + lane % 16 * kRowBytes;
      store_matrices(to + (((step % 4 * 2 + lane / 16) ^ (lane % 8)) << 4), results[4 * step], results[4 * step + 1],
                     results[4 * step + 2], results[4 * step + 3]);
    }
    shared_fence();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        store_box(a.maps[kY], own + part * S::kQueryPart, Box(a, w, kY, w.query + warp * 16, part * 64).at);
      }
    }
  };
  // Lets the producer overwrite the tile by way of which the results of the last work are stored.
  const auto release_stored = [&] {
    if (lane == 0) {
      store_wait<0>();
      barrier_arrive(shared + S::kQueriesEmpty + (queries.stage ^ 1) * 8);
    }
  };

  if (group == 1) {
    named_barrier_arrive(1, 128 * kGroups);
  }
#pragma unroll 1
  for (int round = 0, index = work_index(0); index < a.works; index = work_index(++round), queries.advance()) {
    w = work_of<S>(a, index);
    softmax = {};
    if constexpr (S::kMasked) {
      int64_t offsets[2] = {0, 0};
      a.masks.locate(w.head, offsets);
      mask = static_cast<const T*>(a.mask) + offsets[1];
    }
    barrier_wait(shared + S::kQueriesFull + queries.stage * 8, queries.parity);
    take_turn();
    multiply_keys();
    pass_turn();
    if (round > 0) {
      release_stored();
    }
    __syncwarp();
    weigh(0, std::integral_constant<int, 0>{});
    pack_weights();
#pragma unroll
    for (int i = 0; i < S::kColumns / 2; ++i) {
      y[i] = 0;
    }
#pragma unroll 1
    for (int tile = 1; tile < w.tiles; ++tile) {
      hold(s);
      hold(y);
      hold(p);
      take_turn();
      multiply_keys();
      multiply_values();
      pass_turn();
      weigh(tile, std::integral_constant<int, 1>{});
      wgmma_wait<0>();
      hold(y);
      hold(p);
      release(S::kValuesEmpty, values);
#pragma unroll
      for (int i = 0; i < S::kColumns / 2; ++i) {
        y[i] *= old[i / 2 % 2];
      }
      pack_weights();
    }
    hold(y);
    hold(p);
    multiply_values();
    wgmma_wait<0>();
    hold(y);
    release(S::kValuesEmpty, values);
    store();
  }
  if (lane == 0) {
    store_wait<0>();
  }
}

// Computes attention as kernels/attention.h describes. Without a mask, `a.scale` must be positive.
template <class T, int kWidth, int kKeys, bool kMasked>
__global__ void __launch_bounds__(kThreads, 1) attention_sm90_kernel(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kWidth, kKeys, kMasked>;
  extern __shared__ uint8_t memory[];
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int work = 0; work < kWorks; ++work) {
      barrier_init(shared + S::kQueriesFull + work * 8, 1);
      barrier_init(shared + S::kQueriesEmpty + work * 8, 4 * kGroups);
    }
    for (int stage = 0; stage < S::kMaskStages; ++stage) {
      barrier_init(shared + S::kMasksFull + stage * 8, 1);
      barrier_init(shared + S::kMasksEmpty + stage * 8, 4 * kGroups);
    }
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(shared + S::kKeysFull + stage * 8, 1);
      barrier_init(shared + S::kValuesFull + stage * 8, 1);
      barrier_init(shared + S::kKeysEmpty + stage * 8, 4 * kGroups);
      barrier_init(shared + S::kValuesEmpty + stage * 8, 4 * kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_grid();
  launch_dependent_grids();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 0) {
      copy_tiles<S>(a, shared);
    }
  } else {
    warpgroup_reg_alloc<232>();
    attend<T, S>(a, shared);
  }
#endif
}

}  // namespace fuseconv::cuda::attention_sm90_kernel
