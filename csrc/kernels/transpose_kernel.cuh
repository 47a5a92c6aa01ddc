// The kernels of kernels/transpose.cu.
//
// Tiles are read along the rows of x and written along the columns of y, in words of 4 bytes or more. For elements of 4
// and 8 bytes, a block loops over tiles and loads the words of its next tile from memory to registers while it writes
// the current tile. For elements of 2 bytes, a block copies only one tile, because having more blocks in flight
// outweighs the wait for the loads. (bench/results/h200_transpose_variants.json gives the share of a copy's bandwidth:
// f32 69 % to 93 % instead of 54 % to 72 %, but f16 38 % to 72 % instead of 51 % to 82 %.)
#pragma once

#include "core/layout.h"

namespace fuseconv::cuda {

// A copy is a loop over two axes and an outer loop. The two axes are `rows`, along which x is dense, and `columns`,
// along which y is dense.
struct Transposition {
  Loop outer;  // operands: y, x
  int64_t rows, columns;
  int64_t x_step, y_step;  // the step of x from column to column, and of y from row to row
};

// The shape of a tile. A word contains kElements elements of type T: two if T has 16 bits, otherwise one. A line of a
// tile has one word per lane of a warp.
template <class T>
struct TransposedTile {
  using Word = std::conditional_t<sizeof(T) == 2, uint32_t, T>;
  static constexpr int kElements = sizeof(Word) / sizeof(T);
  static constexpr int kRows = 32 * kElements;
  static constexpr int kColumns = sizeof(T) == 8 ? 32 : 64;
};

inline constexpr int kTransposeWarps = 8;
inline constexpr int kTransposeBlocks = 6;  // per SM

struct TileGrid {
  unsigned rows, columns, count;  // the number of tiles along the rows, along the columns, and in total
  bool whole_x, whole_y;          // whether words can be accessed at once
};

template <class T>
__device__ __forceinline__ typename TransposedTile<T>::Word load_word(const T* x, int64_t left, bool whole) {
  typename TransposedTile<T>::Word word{};
  if (whole && left > 0) {
    word = *reinterpret_cast<const typename TransposedTile<T>::Word*>(x);
  } else if constexpr (TransposedTile<T>::kElements == 2) {
    word = left > 0 ? x[0] : 0u;
    word |= left > 1 ? static_cast<uint32_t>(x[1]) << 16 : 0u;
  }
  return word;
}

template <class T>
__device__ __forceinline__ void store_word(T* y, typename TransposedTile<T>::Word word, int64_t left, bool whole) {
  if (whole && left > 0) {
    *reinterpret_cast<typename TransposedTile<T>::Word*>(y) = word;
  } else if constexpr (TransposedTile<T>::kElements == 2) {
    if (left > 0) {
      y[0] = static_cast<T>(word);
    }
    if (left > 1) {
      y[1] = static_cast<T>(word >> 16);
    }
  }
}

// The position in x and in y where a tile begins.
template <class T>
struct TilePlace {
  const T* x;
  T* y;
  int64_t row, column;

  __device__ __forceinline__ TilePlace(const Transposition& t, const TileGrid& grid, const T* x_data, T* y_data,
                                       unsigned index) {
    unsigned rest = index / grid.rows;
    row = int64_t{index - rest * grid.rows} * TransposedTile<T>::kRows;
    index = rest / grid.columns;
    column = int64_t{rest - index * grid.columns} * TransposedTile<T>::kColumns;
    x = x_data + column * t.x_step + row;
    y = y_data + row * t.y_step + column;
    for (int axis = t.outer.rank - 1; axis >= 0; --axis) {
      const unsigned size = static_cast<unsigned>(t.outer.sizes[axis]);
      rest = index / size;
      const int64_t position = index - rest * size;
      y += position * t.outer.strides[0][axis];
      x += position * t.outer.strides[1][axis];
      index = rest;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kTransposeWarps * 32)
    transpose_one_tile(const __grid_constant__ Transposition t, const __grid_constant__ TileGrid grid, const T* x,
                       T* y) {
  static_assert(sizeof(T) == 2);
  constexpr int kLines = TransposedTile<T>::kColumns / kTransposeWarps;
  __shared__ uint32_t tile[TransposedTile<T>::kColumns][32 + 1];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const TilePlace<T> place(t, grid, x, y, blockIdx.x);
  {
    const int64_t left = t.rows - place.row - lane * 2;
    const T* from = place.x + warp * t.x_step + lane * 2;
    uint32_t words[kLines];
#pragma unroll
    for (int i = 0; i < kLines; ++i, from += kTransposeWarps * t.x_step) {
      words[i] = load_word(from, place.column + warp + i * kTransposeWarps < t.columns ? left : 0, grid.whole_x);
    }
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      tile[warp + i * kTransposeWarps][lane] = words[i];
    }
  }
  __syncthreads();
  const int64_t left = t.columns - place.column - lane * 2;
#pragma unroll
  for (int word = warp; word < 32; word += kTransposeWarps) {
    const int64_t r = place.row + word * 2;
    T* const to = place.y + word * 2 * t.y_step + lane * 2;
    const uint32_t first = tile[lane * 2][word], second = tile[lane * 2 + 1][word];
    store_word(to, __byte_perm(first, second, 0x5410), r < t.rows ? left : 0, grid.whole_y);
    store_word(to + t.y_step, __byte_perm(first, second, 0x7632), r + 1 < t.rows ? left : 0, grid.whole_y);
  }
}

template <class T>
__global__ void __launch_bounds__(kTransposeWarps * 32, kTransposeBlocks)
    transpose_tiles(const __grid_constant__ Transposition t, const __grid_constant__ TileGrid grid, const T* x, T* y) {
  static_assert(sizeof(T) >= 4);
  using Tile = TransposedTile<T>;
  constexpr int kLines = Tile::kColumns / kTransposeWarps;
  // Two tiles in shared memory alternate, so that one barrier per tile suffices.
  __shared__ T tiles[2][Tile::kColumns][32 + 1];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  T words[kLines];
  const auto load = [&](const TilePlace<T>& place) {
    const int64_t left = t.rows - place.row - lane;
    const T* from = place.x + warp * t.x_step + lane;
#pragma unroll
    for (int i = 0; i < kLines; ++i, from += kTransposeWarps * t.x_step) {
      words[i] = load_word(from, place.column + warp + i * kTransposeWarps < t.columns ? left : 0, grid.whole_x);
    }
  };
  TilePlace<T> next(t, grid, x, y, blockIdx.x);
  load(next);
  int turn = 0;
  for (unsigned index = blockIdx.x; index < grid.count; index += gridDim.x, turn ^= 1) {
    const TilePlace<T> place = next;
    T(&tile)[Tile::kColumns][32 + 1] = tiles[turn];
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      tile[warp + i * kTransposeWarps][lane] = words[i];
    }
    __syncthreads();
    if (grid.count - index > gridDim.x) {
      next = TilePlace<T>(t, grid, x, y, index + gridDim.x);
      load(next);
    }
#pragma unroll
    for (int word = warp; word < 32; word += kTransposeWarps) {
      const int64_t r = place.row + word;
      T* const to = place.y + word * t.y_step;
#pragma unroll
      for (int first = 0; first < Tile::kColumns; first += 32) {
        const int column = first + lane;
        const int64_t left = t.columns - place.column - column;
        store_word(to + column, tile[column][word], r < t.rows ? left : 0, grid.whole_y);
      }
    }
  }
}

}  // namespace fuseconv::cuda
