// Copies matrices between layouts, also between one whose rows are dense and one whose columns are. Compiled once per
// instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/isa.h"
#include "core/layout.h"
#include "kernels/block.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The elements of type T that are moved at once, as integers of the same size.
template <class T>
struct Moved {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  static constexpr int kLanes = 32 / sizeof(T);
  typedef Bits Vector __attribute__((vector_size(32)));
};

// Transposes a square matrix, of which each vector is a row. Each of the log2(Lanes) steps rotates the bits of the
// elements' indices, those of the row before those of the column, by one.
template <int Lanes, class Vector, int... I>
void transpose_square(Vector* rows, std::integer_sequence<int, I...>) {
  for (int step = 1; step < Lanes; step *= 2) {
    Vector next[Lanes];
    for (int i = 0; i < Lanes / 2; ++i) {
      const Vector a = rows[i], b = rows[i + Lanes / 2];
      next[2 * i] = __builtin_shufflevector(a, b, (I / 2 + I % 2 * Lanes)...);
      next[2 * i + 1] = __builtin_shufflevector(a, b, (Lanes / 2 + I / 2 + I % 2 * Lanes)...);
    }
    std::copy_n(next, Lanes, rows);
  }
}

// y[r * y_stride + c] = x[c * x_stride + r]
template <class T>
void copy_transposed(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t columns) {
  using Vector = typename Moved<T>::Vector;
  constexpr int kLanes = Moved<T>::kLanes;
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const T* const from = x + c * x_stride + r;
      T* const to = y + r * y_stride + c;
      if (r + kLanes <= rows && c + kLanes <= columns) {
        Vector square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          std::memcpy(&square[i], from + i * x_stride, sizeof(Vector));
        }
        transpose_square<kLanes>(square, std::make_integer_sequence<int, kLanes>{});
        for (int i = 0; i < kLanes; ++i) {
          std::memcpy(to + i * y_stride, &square[i], sizeof(Vector));
        }
      } else {
        for (int64_t i = 0; i < std::min<int64_t>(kLanes, rows - r); ++i) {
          for (int64_t j = 0; j < std::min<int64_t>(kLanes, columns - c); ++j) {
            to[i * y_stride + j] = from[j * x_stride + i];
          }
        }
      }
    }
  }
}

// The memory of a matrix: element (r, c) is at data[r * row + c * column].
template <class T>
struct Matrix {
  T* data;
  int64_t row, column;

  // Returns whether elements of other rows are closer than those of the same one.
  bool is_transposed() const { return column > std::max<int64_t>(row, 1); }
};

template <class T>
void copy_matrix(Matrix<T> x, Matrix<T> y, int64_t rows, int64_t columns) {
  if (x.column == 1 && y.column == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(y.data + r * y.row, x.data + r * x.row, columns * sizeof(T));
    }
  } else if (x.row == 1 && y.column == 1) {
    copy_transposed(x.data, x.column, y.data, y.row, rows, columns);
  } else if (x.column == 1 && y.row == 1) {
    copy_transposed(x.data, x.row, y.data, y.column, columns, rows);
  } else {
    // By squares, of whose columns each cache line is read once, or by rows, if the elements of these are closer.
    constexpr int64_t kSide = 16;
    const int64_t width = x.is_transposed() ? kSide : columns;
    for (int64_t top = 0; top < rows; top += kSide) {
      for (int64_t left = 0; left < columns; left += width) {
        for (int64_t r = top; r < std::min(top + kSide, rows); ++r) {
          for (int64_t c = left; c < std::min(left + width, columns); ++c) {
            y.data[r * y.row + c * y.column] = x.data[r * x.row + c * x.column];
          }
        }
      }
    }
  }
}

// Copies the elements of n steps of a loop, from step `begin` on, to dense memory. x is the memory of an operand.
template <class T>
void copy_steps(const Loop& loop, int operands, int operand, const T* x, int64_t begin, int64_t n, T* y) {
  const int inner = loop.rank - 1, outer = std::max(inner - 1, 0);
  const int64_t* const strides = loop.strides[operand];
  const int64_t row = inner == outer ? 0 : strides[outer];
  Position position(loop, operands, begin);
  for (int64_t done = 0; done < n;) {
    const int64_t columns = std::min(position.left(), n - done);
    int64_t rows = 1;  // several whole rows, or a part of one
    if (columns == loop.sizes[inner] && inner != outer) {
      rows = std::min(loop.sizes[outer] - position.index(outer), (n - done) / columns);
    }
    T* const from = const_cast<T*>(x) + position.offsets()[operand];
    copy_matrix<T>({from, row, strides[inner]}, {y + done, columns, 1}, rows, columns);
    for (int64_t r = 0; r < rows; ++r, done += columns) {
      position.advance(columns);
    }
  }
}

// Finds rows of a matrix in the compute type: in the matrix itself, or converted in the buffer. Rows of a transposed
// matrix are copied together first. `moved` and `buffer` have room for all of them.
template <class T>
void load_rows(Matrix<T> x, int64_t rows, int64_t columns, T* moved, Compute<T>* buffer, const Compute<T>** found) {
  if (x.is_transposed()) {
    const Matrix<T> dense{dense_block(buffer, moved), columns, 1};
    copy_matrix(x, dense, rows, columns);
    x = dense;
  }
  for (int64_t r = 0; r < rows; ++r) {
    found[r] = load_block(x.data + r * x.row, x.column, columns, buffer + r * columns);
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
