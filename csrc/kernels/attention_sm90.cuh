// Attention for Hopper (sm_90a) in f16 and bf16 with f32 accumulators. The grid is persistent; the work of a block is
// to compute 128 queries of a head. A producer thread copies tiles of 128 keys and their values with TMA to a ring in
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

#include "arch/math.cuh"
#include "arch/pairs.cuh"
#include "arch/sm90.cuh"
#include "arch/sm90_wgmma.cuh"
#include "gemm/ring.cuh"
#include "kernels/index.cuh"

namespace fuseconv::cuda::attention_sm90_kernel {

using namespace arch::sm90;
using linear::Ring;

inline constexpr int kGroups = 2;              // consumer warpgroups
inline constexpr int kQueries = 64 * kGroups;  // of a block
inline constexpr int kKeys = 128;              // of a tile
inline constexpr int kThreads = 128 + 128 * kGroups;
inline constexpr int kRowBytes = 128;  // 64 columns
inline constexpr int kWorks = 2;       // works whose queries are in shared memory
inline constexpr int kMatrixDims = 3;

enum Operand { kY, kQ, kK, kV, kOperands };

struct Arguments {
  CUtensorMap maps[kOperands];
  Divisor<uint32_t> heads, sizes[kMatrixDims - 1];  // the sizes of the dims of matrices, innermost first
  bool varies[kOperands][kMatrixDims];              // whether an operand has its own matrices along a dim
  IndexSpace<uint32_t, 2> masks;                    // operands: y, mask
  int64_t mask_row, mask_column;
  const void* mask;
  bool mask_in_pairs;  // whether two adjacent elements of the mask, from an even column on, are an aligned pair
  bool is_causal;
  int queries, keys, tiles;  // tiles of queries
  int works;                 // tiles of all heads
  float scale;
};

// The layout of shared memory. Columns are in parts of 64, of which each is a tile to itself.
template <int kWidth>
struct Shape {
  static constexpr int kColumns = kWidth;
  static constexpr int kParts = kWidth / 64;
  static constexpr int kStages = kParts == 1 ? 3 : 2;
  static constexpr uint32_t kQueryPart = kQueries * kRowBytes, kKeyPart = kKeys * kRowBytes;
  static constexpr uint32_t kTileBytes = kParts * kKeyPart;
  static constexpr uint32_t kQueryBytes = kParts * kQueryPart;
  static constexpr uint32_t kQueryTiles = 0;
  static constexpr uint32_t kKeyTiles = kQueryTiles + kWorks * kQueryBytes;
  static constexpr uint32_t kValueTiles = kKeyTiles + kStages * kTileBytes;
  // Barriers, of 8 bytes.
  static constexpr uint32_t kQueriesFull = kValueTiles + kStages * kTileBytes;
  static constexpr uint32_t kQueriesEmpty = kQueriesFull + kWorks * 8;
  static constexpr uint32_t kKeysFull = kQueriesEmpty + kWorks * 8, kKeysEmpty = kKeysFull + kStages * 8;
  static constexpr uint32_t kValuesFull = kKeysEmpty + kStages * 8, kValuesEmpty = kValuesFull + kStages * 8;
  static constexpr uint32_t kBytes = kValuesEmpty + kStages * 8 + 1024;  // tiles begin at multiples of 1024
};

// The work of a block: queries of a head.
struct Work {
  uint32_t head;
  int at[kMatrixDims];  // the head's position in the dims of matrices
  int query;            // the first one
  int tiles;            // tiles of keys that the queries see
};

// Returns the work of this block in a round. Every other round goes backwards, because the works become shorter.
__device__ __forceinline__ int work_index(int round) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

__device__ __forceinline__ Work work_of(const Arguments& a, int index) {
  Work w;
  // The last queries, which see most keys if attention is causal, come first.
  const uint32_t tile = a.heads.quotient(static_cast<uint32_t>(index));
  w.head = static_cast<uint32_t>(index) - tile * a.heads.divisor;
  const uint32_t rest = a.sizes[0].quotient(w.head), last = a.sizes[1].quotient(rest);
  w.at[0] = static_cast<int>(w.head - rest * a.sizes[0].divisor);
  w.at[1] = static_cast<int>(rest - last * a.sizes[1].divisor);
  w.at[2] = static_cast<int>(last);
  w.query = (a.tiles - 1 - static_cast<int>(tile)) * kQueries;
  const int visible = a.is_causal ? min(a.keys, w.query + kQueries) : a.keys;
  w.tiles = (visible + kKeys - 1) / kKeys;
  return w;
}

// The coordinates of a box of an operand: a row and 64 columns.
struct Box {
  int at[5];

  __device__ __forceinline__ Box(const Arguments& a, const Work& w, Operand operand, int row, int part)
      : at{part * 64, row} {
#pragma unroll
    for (int dim = 0; dim < kMatrixDims; ++dim) {
      at[2 + dim] = a.varies[operand][dim] ? w.at[dim] : 0;
    }
  }
};

// Producer: one thread copies the queries of each work, and the keys and values tile by tile.
template <class S>
__device__ __forceinline__ void copy_tiles(const Arguments& a, uint32_t shared) {
  Ring<kWorks> queries;
  Ring<S::kStages> at;
#pragma unroll 1
  for (int round = 0, index = work_index(0); index < a.works; index = work_index(++round), queries.advance()) {
    const Work w = work_of(a, index);
    const auto copy = [&](Operand operand, int row, uint32_t to, uint32_t part_bytes, uint32_t full, uint32_t empty,
                          uint32_t parity) {
      barrier_wait(empty, parity ^ 1);
      barrier_expect(full, S::kParts * part_bytes);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        load_box(to + part * part_bytes, a.maps[operand], Box(a, w, operand, row, part).at, full);
      }
    };
    copy(kQ, w.query, shared + S::kQueryTiles + queries.stage * S::kQueryBytes, S::kQueryPart,
         shared + S::kQueriesFull + queries.stage * 8, shared + S::kQueriesEmpty + queries.stage * 8, queries.parity);
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; ++tile, at.advance()) {
      const uint32_t offset = at.stage * S::kTileBytes, barrier = shared + at.stage * 8;
      copy(kK, tile * kKeys, shared + S::kKeyTiles + offset, S::kKeyPart, barrier + S::kKeysFull,
           barrier + S::kKeysEmpty, at.parity);
      copy(kV, tile * kKeys, shared + S::kValueTiles + offset, S::kKeyPart, barrier + S::kValuesFull,
           barrier + S::kValuesEmpty, at.parity);
    }
  }
}

// The mask of this thread's scores of a tile, in pairs of columns. Elements outside the mask may have any value.
template <class T>
__device__ __forceinline__ void load_mask(const Arguments& a, const T* mask, int row, int column,
                                          uint32_t (&pairs)[kKeys / 8][2]) {
  const bool is_shared = a.mask_row == 0;  // by all queries
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* const from = mask + min(row + 8 * half, a.queries - 1) * a.mask_row;
    if (half == 1 && is_shared) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        pairs[j][1] = pairs[j][0];
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
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

template <class Combine>
__device__ __forceinline__ float over_row(float x, Combine combine) {
  x = combine(x, __shfl_xor_sync(~0u, x, 1));
  return combine(x, __shfl_xor_sync(~0u, x, 2));
}

// The softmax of a thread's two rows, over the tiles so far.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

  // Replaces scores by weights, which are 2^(factor (score - pivot)). Returns in `old` the factors of the weights so
  // far. A mask may have the lowest number of bf16, whose product with a factor above 1 overflows. If no score is far
  // above it, scores differ from the pivot not at all or by so much that any factor gives the same weights.
  template <bool kMayBeLowest>
  __device__ __forceinline__ void weigh(float (&s)[kKeys / 2], float factor, float (&old)[2]) {
    constexpr float kLow = -1e38f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        top = fmaxf(top, s[i / 2 * 4 + half * 2 + i % 2]);
      }
      top = over_row(top, [](float x, float z) { return fmaxf(x, z); });
      const float pivot = top == -INFINITY ? 0.0f : top;  // so that -inf becomes 0 and not NaN
      const float by = kMayBeLowest && pivot < kLow ? 1.0f : factor;
      const float shift = pivot * by;
      old[half] = arch::exp2_approx((largest[half] - pivot) * by);
      largest[half] = top;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        float& score = s[i / 2 * 4 + half * 2 + i % 2];
        score = arch::exp2_approx(score * by - shift);
        sum += score;
      }
      total[half] = total[half] * old[half] + sum;
    }
  }
};

// Consumer: a warpgroup computes 64 queries of each work.
template <class T, class S, bool kMasked>
__device__ __forceinline__ void attend(const Arguments& a, uint32_t shared) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kSteps = kKeys / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = warp / 4;
  float s[kKeys / 2], y[S::kColumns / 2], old[2];
  uint32_t p[kSteps][4];
  Ring<kWorks> queries;
  Ring<S::kStages> keys, values;
  Work w{};
  Softmax softmax;

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
    if constexpr (kMasked) {
      load_mask(a, mask, w.query + warp * 16 + lane / 4, tile * kKeys + lane % 4 * 2, pairs);
    }
    wgmma_wait<kPending>();
    hold(s);
    release(S::kKeysEmpty, keys);
    if constexpr (kMasked) {
      add_mask(pairs);
    }
    hide(tile * kKeys);
    softmax.weigh<kMasked>(s, kMasked ? kLog2E : a.scale * kLog2E, old);
  };
  // Stores the results by way of the tile of the queries, which all warps of the group have read.
  const auto store = [&] {
    uint32_t results[S::kColumns / 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = over_row(softmax.total[half], [](float x, float z) { return x + z; });
      const float share = sum == 0.0f ? 0.0f : 1.0f / sum;
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
        store_box(a.maps[kY], own + part * S::kQueryPart, Box(a, w, kY, w.query + warp * 16, part).at);
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
    w = work_of(a, index);
    softmax = {};
    if constexpr (kMasked) {
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
template <class T, int kWidth, bool kMasked>
__global__ void __launch_bounds__(kThreads, 1) attention_sm90_kernel(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kWidth>;
  extern __shared__ uint8_t memory[];
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int work = 0; work < kWorks; ++work) {
      barrier_init(shared + S::kQueriesFull + work * 8, 1);
      barrier_init(shared + S::kQueriesEmpty + work * 8, 4 * kGroups);
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
    attend<T, S, kMasked>(a, shared);
  }
#endif
}

}  // namespace fuseconv::cuda::attention_sm90_kernel
