// The arguments of the kernel of attention_sm90.cuh, its shared memory, and the works of its blocks.
#pragma once

#include "arch/sm90.cuh"
#include "kernels/index.cuh"

namespace fuseconv::cuda::attention_sm90_kernel {

using namespace arch::sm90;

inline constexpr int kGroups = 2;              // consumer warpgroups
inline constexpr int kQueries = 64 * kGroups;  // of a block
inline constexpr int kThreads = 128 + 128 * kGroups;
inline constexpr int kRowBytes = 128;  // 64 columns
inline constexpr int kWorks = 2;       // works whose queries are in shared memory
inline constexpr int kMatrixDims = 3;

enum Operand { kY, kQ, kK, kV, kMask, kOperands };

// The dims of matrices, innermost first.
struct MatrixDims {
  Divisor<uint32_t> sizes[kMatrixDims - 1];  // without the outermost

  __device__ __forceinline__ void locate(uint32_t index, int (&at)[kMatrixDims]) const {
    const uint32_t rest = sizes[0].quotient(index), last = sizes[1].quotient(rest);
    at[0] = static_cast<int>(index - rest * sizes[0].divisor);
    at[1] = static_cast<int>(rest - last * sizes[1].divisor);
    at[2] = static_cast<int>(last);
  }
};

struct Arguments {
  CUtensorMap maps[kOperands];
  bool varies[kOperands][kMatrixDims];  // whether an operand has its own matrices along a dim
  MatrixDims dims, mask_dims;
  Divisor<uint32_t> heads;
  int mask_rows;                  // of a tile that TMA copies: 1 if all queries share it; 0 if threads load the mask
  IndexSpace<uint32_t, 2> masks;  // operands: y, mask
  int64_t mask_row, mask_column;
  const void* mask;
  bool mask_in_pairs;  // whether two adjacent elements of the mask, from an even column on, are an aligned pair
  bool is_causal;
  int queries, keys, tiles;  // tiles of queries
  int works;                 // tiles of all heads
  float scale;
};

// The sizes of tiles, and the layout of shared memory. Columns are in parts of 64, of which each is a tile to itself.
template <int kWidth, int kTileKeys, bool kHasMask>
struct Shape {
  static constexpr int kColumns = kWidth;
  static constexpr int kKeys = kTileKeys;  // of a tile
  static constexpr bool kMasked = kHasMask;
  static constexpr int kParts = kWidth / 64;
  static constexpr int kStages = kParts == 1 ? 3 : 2;
  static constexpr uint32_t kQueryPart = kQueries * kRowBytes, kKeyPart = kKeys * kRowBytes;
  static constexpr uint32_t kTileBytes = kParts * kKeyPart;
  static constexpr uint32_t kQueryBytes = kParts * kQueryPart;
  static constexpr uint32_t kQueryTiles = 0;
  static constexpr uint32_t kKeyTiles = kQueryTiles + kWorks * kQueryBytes;
  static constexpr uint32_t kValueTiles = kKeyTiles + kStages * kTileBytes;
  static constexpr int kMaskStages = kParts == 1 ? 2 : 1;
  static constexpr int kMaskParts = (kKeys + 63) / 64;
  static constexpr uint32_t kMaskPart = kQueries * kRowBytes, kMaskBytes = kMaskParts * kMaskPart;
  static constexpr uint32_t kMaskTiles = kValueTiles + kStages * kTileBytes;
  // Barriers, of 8 bytes.
  static constexpr uint32_t kMasksFull = kMaskTiles + (kMasked ? kMaskStages * kMaskBytes : 0);
  static constexpr uint32_t kMasksEmpty = kMasksFull + kMaskStages * 8;
  static constexpr uint32_t kQueriesFull = kMasksEmpty + kMaskStages * 8;
  static constexpr uint32_t kQueriesEmpty = kQueriesFull + kWorks * 8;
  static constexpr uint32_t kKeysFull = kQueriesEmpty + kWorks * 8, kKeysEmpty = kKeysFull + kStages * 8;
  static constexpr uint32_t kValuesFull = kKeysEmpty + kStages * 8, kValuesEmpty = kValuesFull + kStages * 8;
  static constexpr uint32_t kBytes = kValuesEmpty + kStages * 8 + 1024;  // tiles begin at multiples of 1024
};

// The work of a block: queries of a head.
struct Work {
  uint32_t head;
  int at[kMatrixDims], mask_at[kMatrixDims];  // the head's position in the dims of matrices, and in those of masks
  int query;                                  // the first one
  int tiles;                                  // tiles of keys that the queries see
};

// Returns the work of this block in a round. Every other round goes backwards, because the works become shorter.
__device__ __forceinline__ int work_index(int round) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

template <class S>
__device__ __forceinline__ Work work_of(const Arguments& a, int index) {
  Work w;
  // The last queries, which see most keys if attention is causal, come first.
  const uint32_t tile = a.heads.quotient(static_cast<uint32_t>(index));
  w.head = static_cast<uint32_t>(index) - tile * a.heads.divisor;
  a.dims.locate(w.head, w.at);
  a.mask_dims.locate(w.head, w.mask_at);
  w.query = (a.tiles - 1 - static_cast<int>(tile)) * kQueries;
  const int visible = a.is_causal ? min(a.keys, w.query + kQueries) : a.keys;
  w.tiles = (visible + S::kKeys - 1) / S::kKeys;
  return w;
}

// The coordinates of a box of an operand: a row and 64 columns.
struct Box {
  int at[5];

  __device__ __forceinline__ Box(const Arguments& a, const Work& w, Operand operand, int row, int column)
      : at{column, row} {
#pragma unroll
    for (int dim = 0; dim < kMatrixDims; ++dim) {
      at[2 + dim] = !a.varies[operand][dim] ? 0 : operand == kMask ? w.mask_at[dim] : w.at[dim];
    }
  }
};

}  // namespace fuseconv::cuda::attention_sm90_kernel
