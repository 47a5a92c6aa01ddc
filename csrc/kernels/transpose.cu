#include "kernels/transpose.h"

#include <algorithm>
#include <optional>

#include "core/cuda.cuh"
#include "core/scratch.h"
#include "kernels/pointwise.cuh"
#include "kernels/transpose_kernel.cuh"

namespace fuseconv::cuda {
namespace {

constexpr int64_t kSmall = 16;             // tensors with a shorter axis are copied element by element
constexpr int64_t kFewElements = 1 << 14;  // with fewer elements, a separate copy does not pay off

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

// Returns whether all words along the dense axis of an operand are aligned, so that a thread can access each at once.
template <class T>
bool has_words(const void* data, const Loop& outer, int operand, int64_t step, int64_t length) {
  constexpr int kElements = TransposedTile<T>::kElements;
  bool has = reinterpret_cast<uintptr_t>(data) % sizeof(typename TransposedTile<T>::Word) == 0 &&
             step % kElements == 0 && length % kElements == 0;
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
void launch(CudaHost& host, const Transposition& t, In x, Out y) {
  using Tile = TransposedTile<T>;
  const int64_t rows = (t.rows + Tile::kRows - 1) / Tile::kRows;
  const int64_t columns = (t.columns + Tile::kColumns - 1) / Tile::kColumns;
  const int64_t count = t.outer.count() * rows * columns;
  check(count <= kMaxBlocks, "fuseconv: a tensor is too large to be transposed: it has ", count, " tiles");
  const TileGrid grid{static_cast<unsigned>(rows), static_cast<unsigned>(columns), static_cast<unsigned>(count),
                      has_words<T>(x.data, t.outer, 1, t.x_step, t.rows),
                      has_words<T>(y.data, t.outer, 0, t.y_step, t.columns)};
  const dim3 threads(32, kTransposeWarps);
  const T* const from = static_cast<const T*>(x.data);
  T* const to = static_cast<T*>(y.data);
  if constexpr (sizeof(T) == 2) {
    transpose_one_tile<T><<<grid.count, threads, 0, stream_of(host)>>>(t, grid, from, to);
  } else {
    const int64_t blocks = std::min<int64_t>(count, int64_t{kTransposeBlocks} * sm_count());
    transpose_tiles<T><<<static_cast<unsigned>(blocks), threads, 0, stream_of(host)>>>(t, grid, from, to);
  }
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

In copied(CudaHost& host, In x, const Spec& spec) {
  const Out y = in_scratch(host, spec);
  copy(host, x, y);
  return y;
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
