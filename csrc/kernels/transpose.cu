#include "kernels/transpose.h"

#include <algorithm>
#include <optional>

#include "core/cuda.cuh"
#include "kernels/pointwise.cuh"

namespace fuseconv::cuda {
namespace {

constexpr int kWarps = 8, kWords = 32;     // of a tile's line, one a lane
constexpr int64_t kSmall = 16;             // lines that are shorter are copied element by element
constexpr int64_t kFewElements = 1 << 14;  // for which two kernels would take longer

// The loop of a copy without two axes: `rows` along which x is dense, and `columns` along which y is.
struct Transposition {
  Loop outer;  // operands: y, x
  int64_t rows, columns;
  int64_t x_step, y_step;  // of x from column to column, and of y from row to row
};

std::optional<Transposition> transposition(In x, In y) {
  const Loop loop = element_loop({const_cast<void*>(y.data), y.dtype, y.rank, y.sizes, y.strides}, {x});
  const int last = loop.rank - 1;
  int axis = 0;
  while (axis < last && loop.strides[1][axis] != 1) {
    ++axis;
  }
  if (axis == last || loop.strides[0][last] != 1 || loop.strides[1][last] <= 1 || loop.sizes[axis] < kSmall ||
      loop.sizes[last] < kSmall) {
    return std::nullopt;
  }
  Transposition t{loop, loop.sizes[axis], loop.sizes[last], loop.strides[1][last], loop.strides[0][axis]};
  t.outer.sizes[axis] = t.outer.sizes[last] = 1;
  return t;
}

// A word holds kElements of T: two of 16 bits.
template <class T>
struct Tile {
  using Word = std::conditional_t<sizeof(T) == 2, uint32_t, T>;
  static constexpr int kElements = sizeof(Word) / sizeof(T);
  static constexpr int kSide = kWords * kElements;
};

// Whether words of lines can be accessed at once.
template <class T>
bool has_words(const void* data, const Loop& outer, int operand, int64_t step, int64_t length) {
  constexpr int kElements = Tile<T>::kElements;
  bool has = reinterpret_cast<uintptr_t>(data) % sizeof(typename Tile<T>::Word) == 0 && step % kElements == 0 &&
             length % kElements == 0;
  for (int axis = 0; axis < outer.rank; ++axis) {
    has &= outer.sizes[axis] == 1 || outer.strides[operand][axis] % kElements == 0;
  }
  return has;
}

bool is_dense(In tensor) {
  int64_t last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    last += (tensor.sizes[axis] - 1) * tensor.strides[axis];
  }
  return last + 1 == element_count(tensor);
}

template <class T>
__device__ __forceinline__ typename Tile<T>::Word load_word(const T* x, int64_t left, bool whole) {
  typename Tile<T>::Word word{};
  if (whole && left > 0) {
    word = *reinterpret_cast<const typename Tile<T>::Word*>(x);
  } else if constexpr (Tile<T>::kElements == 2) {
    word = left > 0 ? x[0] : 0u;
    word |= left > 1 ? static_cast<uint32_t>(x[1]) << 16 : 0u;
  }
  return word;
}

template <class T>
__device__ __forceinline__ void store_word(T* y, typename Tile<T>::Word word, int64_t left, bool whole) {
  if (whole && left > 0) {
    *reinterpret_cast<typename Tile<T>::Word*>(y) = word;
  } else if constexpr (Tile<T>::kElements == 2) {
    if (left > 0) {
      y[0] = static_cast<T>(word);
    }
    if (left > 1) {
      y[1] = static_cast<T>(word >> 16);
    }
  }
}

// A block copies a tile: its warps read lines along the rows, and write lines along the columns.
template <class T>
__global__ void __launch_bounds__(kWarps * 32)
    transpose_kernel(const __grid_constant__ Transposition t, const T* x, T* y, int64_t row_tiles, int64_t column_tiles,
                     bool whole_x, bool whole_y) {
  using Word = typename Tile<T>::Word;
  constexpr int kElements = Tile<T>::kElements, kSide = Tile<T>::kSide;
  __shared__ Word tile[kSide][kWords + 1];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  int64_t index = blockIdx.x;
  const int64_t row = index % row_tiles * kSide;
  index /= row_tiles;
  const int64_t column = index % column_tiles * kSide;
  index /= column_tiles;
  for (int axis = t.outer.rank - 1; axis >= 0; --axis) {
    const int64_t rest = index / t.outer.sizes[axis], position = index - rest * t.outer.sizes[axis];
    y += position * t.outer.strides[0][axis];
    x += position * t.outer.strides[1][axis];
    index = rest;
  }
  {
    const int64_t left = t.rows - row - lane * kElements;
    const T* from = x + (column + warp) * t.x_step + row + lane * kElements;
    Word words[kSide / kWarps];
#pragma unroll
    for (int i = 0; i < kSide / kWarps; ++i, from += kWarps * t.x_step) {
      words[i] = load_word(from, column + warp + i * kWarps < t.columns ? left : 0, whole_x);
    }
#pragma unroll
    for (int i = 0; i < kSide / kWarps; ++i) {
      tile[warp + i * kWarps][lane] = words[i];
    }
  }
  __syncthreads();
  const int64_t left = t.columns - column - lane * kElements;
  T* const to = y + column + lane * kElements;
#pragma unroll
  for (int word = warp; word < kWords; word += kWarps) {
    const int64_t r = row + word * kElements;
    if constexpr (kElements == 2) {
      const uint32_t first = tile[lane * 2][word], second = tile[lane * 2 + 1][word];
      store_word(to + r * t.y_step, __byte_perm(first, second, 0x5410), r < t.rows ? left : 0, whole_y);
      store_word(to + (r + 1) * t.y_step, __byte_perm(first, second, 0x7632), r + 1 < t.rows ? left : 0, whole_y);
    } else {
      store_word(to + r * t.y_step, tile[lane][word], r < t.rows ? left : 0, whole_y);
    }
  }
}

template <class T>
void launch(CudaHost& host, const Transposition& t, In x, Out y) {
  const auto tiles = [](int64_t size) { return (size + Tile<T>::kSide - 1) / Tile<T>::kSide; };
  const int64_t row_tiles = tiles(t.rows), column_tiles = tiles(t.columns);
  const int64_t blocks = t.outer.count() * row_tiles * column_tiles;
  check(blocks <= kMaxBlocks, "fuseconv: a tensor is too large to be transposed: it has ", blocks, " tiles");
  transpose_kernel<T><<<static_cast<unsigned>(blocks), dim3(32, kWarps), 0, stream_of(host)>>>(
      t, static_cast<const T*>(x.data), static_cast<T*>(y.data), row_tiles, column_tiles,
      has_words<T>(x.data, t.outer, 1, t.x_step, t.rows), has_words<T>(y.data, t.outer, 0, t.y_step, t.columns));
  check_launch("a transposition");
}

}  // namespace

void copy(CudaHost& host, In x, Out y) {
  const std::optional<Transposition> t = element_count(y) == 0 ? std::nullopt : transposition(x, y);
  if (!t) {
    return pointwise(host, Identity{}, y, x);
  }
  switch (size_of(y.dtype)) {
    case 2:
      return launch<uint16_t>(host, *t, x, y);
    case 4:
      return launch<uint32_t>(host, *t, x, y);
    default:
      return launch<uint64_t>(host, *t, x, y);
  }
}

bool is_transposed(In x, In y) { return transposition(x, y).has_value(); }

In in_layout_of(CudaHost& host, In x, In y) {
  if (x.rank != y.rank || !std::equal(x.sizes, x.sizes + x.rank, y.sizes) || element_count(y) < kFewElements ||
      !is_dense(y) || !transposition(x, y)) {
    return x;
  }
  void* const data = host.scratch(static_cast<size_t>(element_count(x) * size_of(x.dtype)));
  copy(host, x, {data, x.dtype, x.rank, x.sizes, y.strides});
  return {data, x.dtype, x.rank, x.sizes, y.strides};
}

}  // namespace fuseconv::cuda
