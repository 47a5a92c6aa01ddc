// Computes pointwise formulas over loops in which an operand is not dense along the innermost axis, but along another
// axis, such as a transposed matrix. Compiled once per instruction set.
//
// A tile is a part of both axes. Its elements of each operand are copied to a dense block, for which the formula is
// called once, so that each cache line of the operand is read once, while the other operands are still read in order.
#pragma once

#include <algorithm>

#include "core/dtype.h"
#include "core/layout.h"
#include "kernels/block.h"
#include "kernels/matrix_copy.h"
#include "kernels/pointwise.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

inline constexpr int64_t kTileRows = 16;

// Returns the axis along which an operand is dense that is not dense along the innermost axis, or -1. `is_tensor` says
// for each operand whether it has elements in memory. Short axes have none, because few elements of a tile would be
// used.
inline int dense_other_axis(const Loop& loop, int operands, const bool* is_tensor) {
  const int inner = loop.rank - 1;
  for (int operand = 0; loop.sizes[inner] >= kTileRows && operand < operands; ++operand) {
    const int64_t* strides = loop.strides[operand];
    for (int axis = inner - 1; is_tensor[operand] && strides[inner] != 0 && strides[inner] != 1 && axis >= 0; --axis) {
      if (strides[axis] == 1 && loop.sizes[axis] > 1) {
        return axis;
      }
    }
  }
  return -1;
}

template <class T>
class Tiles {
 public:
  using A = Compute<T>;

  // Prepares the tiles of the innermost axis and of `axis`.
  Tiles(const Loop& loop, int axis, T* y, const Operand<A>* x, int inputs, BlockFunction<A> function,
        const void* formula)
      : loop_(loop), tiles_(loop), axis_(axis), y_(y), x_(x), inputs_(inputs), function_(function), formula_(formula) {
    cut(axis, kTileRows);
    cut(inner(), kTileColumns);
  }

  // Returns the number of tiles.
  int64_t count() const { return tiles_.count(); }

  // Computes tiles [begin, end).
  void operator()(int64_t begin, int64_t end) const {
    for (Position position(tiles_, inputs_ + 1, begin); begin < end; ++begin, position.advance(1)) {
      tile(position.offsets(), std::min(kTileRows, loop_.sizes[axis_] - position.index(axis_) * kTileRows),
           std::min(kTileColumns, loop_.sizes[inner()] - position.index(inner()) * kTileColumns));
    }
  }

  static constexpr int64_t kTileColumns = kBlock / static_cast<int64_t>(sizeof(A));
  static constexpr int64_t kTile = kTileRows * kTileColumns;

 private:
  int inner() const { return loop_.rank - 1; }

  void cut(int axis, int64_t size) {
    tiles_.sizes[axis] = (loop_.sizes[axis] + size - 1) / size;
    for (int operand = 0; operand <= inputs_; ++operand) {
      tiles_.strides[operand][axis] *= size;
    }
  }

  Matrix<T> matrix(int operand, T* data) const {
    return {data, loop_.strides[operand][axis_], loop_.strides[operand][inner()]};
  }

  void tile(const int64_t* offsets, int64_t rows, int64_t columns) const {
    alignas(64) A buffers[kMaxOperands][kTile];
    alignas(64) T moved[kTile];
    const int64_t n = rows * columns;
    const A* operands[kMaxOperands];
    for (int i = 0; i < inputs_; ++i) {
      A* const buffer = buffers[i + 1];
      if (x_[i].fill != nullptr) {
        const int64_t row = loop_.strides[i + 1][axis_], column = loop_.strides[i + 1][inner()];
        for (int64_t r = 0; r < rows; ++r) {
          x_[i].fill(x_[i].data, offsets[i + 1] + r * row, column, buffer + r * columns, columns);
        }
        operands[i] = buffer;
      } else {
        T* const dense = dense_block(buffer, moved);
        T* const data = static_cast<T*>(const_cast<void*>(x_[i].data)) + offsets[i + 1];
        copy_matrix<T>(matrix(i + 1, data), {dense, columns, 1}, rows, columns);
        operands[i] = load_block(dense, 1, n, buffer);
      }
    }
    function_(formula_, buffers[0], operands, n);
    T* const dense = dense_block(buffers[0], moved);
    store_block(buffers[0], dense, 1, n);
    copy_matrix<T>({dense, columns, 1}, matrix(0, y_ + offsets[0]), rows, columns);
  }

  const Loop& loop_;
  Loop tiles_;  // its steps are tiles
  int axis_;
  T* y_;
  const Operand<A>* x_;
  int inputs_;
  BlockFunction<A> function_;
  const void* formula_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
