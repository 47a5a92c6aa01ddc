// Row norms of tensors whose rows are not dense in memory, but whose columns are, as after a transposition. Compiled
// once per instruction set.
//
// A panel is a few rows that are adjacent in the memory of such an operand. The rows of a panel are copied to dense
// memory and computed there, so that each cache line of the operand is read once.
#pragma once

#include <algorithm>
#include <optional>

#include "core/layout.h"
#include "kernels/buffer.h"
#include "kernels/matrix_copy.h"
#include "kernels/norm.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

inline constexpr int64_t kPanelRows = 16;

// The distance between the elements of a row.
inline int64_t column_stride(In tensor) { return tensor.strides[tensor.rank - 1]; }

// The operands of a norm, y, x, and the residual and the sum if present, and the loop over their rows.
struct NormRows {
  In operands[kMaxOperands];
  int count;
  Loop loop;

  explicit NormRows(const Norm& norm) : operands{norm.y, norm.x}, count(2) {
    if (norm.residual) {
      operands[count++] = *norm.residual;
    }
    if (norm.sum) {
      operands[count++] = *norm.sum;
    }
    loop = row_loop(operands, count);
  }
};

// Returns an axis of the rows along which an operand is dense whose rows are not, or -1.
inline int panel_axis(const NormRows& rows) {
  for (int operand = 0; operand < rows.count; ++operand) {
    const int64_t stride = column_stride(rows.operands[operand]);
    for (int axis = rows.loop.rank - 1; stride != 0 && stride != 1 && axis >= 0; --axis) {
      if (rows.loop.strides[operand][axis] == 1 && rows.loop.sizes[axis] > 1) {
        return axis;
      }
    }
  }
  return -1;
}

template <class T>
class Panels {
 public:
  // Prepares the panels along an axis of the rows.
  Panels(const Norm& norm, const NormRows& rows, int axis)
      : norm_(norm),
        panels_(rows.loop),
        axis_(axis),
        size_(rows.loop.sizes[axis]),
        columns_(norm.x.sizes[norm.x.rank - 1]),
        count_(rows.count) {
    panels_.sizes[axis] = (size_ + kPanelRows - 1) / kPanelRows;
    for (int i = 0; i < count_; ++i) {
      data_[i] = static_cast<T*>(const_cast<void*>(rows.operands[i].data));
      strides_[i][0] = rows.loop.strides[i][axis];
      strides_[i][1] = column_stride(rows.operands[i]);
      is_copied_[i] = strides_[i][0] == 1 && strides_[i][1] != 0;
      panels_.strides[i][axis] *= kPanelRows;
    }
  }

  int64_t count() const { return panels_.count(); }

  // Calls compute(norm) for panels [begin, end), with the norm of the panel's rows. Its tensors have two dims.
  template <class Function>
  void each(int64_t begin, int64_t end, const Function& compute) const {
    Buffer<T> copies(std::count(is_copied_, is_copied_ + count_, true) * kPanelRows * columns_);
    for (Position position(panels_, count_, begin); begin < end; ++begin, position.advance(1)) {
      const int64_t rows = std::min(kPanelRows, size_ - position.index(axis_) * kPanelRows);
      panel(position.offsets(), rows, copies.data(), compute);
    }
  }

 private:
  template <class Function>
  void panel(const int64_t* offsets, int64_t rows, T* copies, const Function& compute) const {
    const int64_t sizes[] = {rows, columns_}, dense[] = {columns_, 1};
    Matrix<T> place[kMaxOperands], copy[kMaxOperands];
    Out views[kMaxOperands];
    for (int i = 0; i < count_; ++i) {
      place[i] = {data_[i] + offsets[i], strides_[i][0], strides_[i][1]};
      views[i] = {place[i].data, norm_.x.dtype, 2, sizes, strides_[i]};
      if (is_copied_[i]) {
        copy[i] = {copies, columns_, 1};
        views[i] = {copies, norm_.x.dtype, 2, sizes, dense};
        copies += kPanelRows * columns_;
        if (is_input(i)) {
          copy_matrix<T>(place[i], copy[i], rows, columns_);
        }
      }
    }
    Norm norm = norm_;
    norm.y = views[0];
    norm.x = views[1];
    if (norm.residual) {
      norm.residual = views[2];
    }
    if (norm.sum) {
      norm.sum = views[count_ - 1];
    }
    compute(norm);
    for (int i = 0; i < count_; ++i) {
      if (is_copied_[i] && !is_input(i)) {
        copy_matrix<T>(copy[i], place[i], rows, columns_);
      }
    }
  }

  bool is_input(int operand) const { return operand == 1 || (operand == 2 && norm_.residual); }

  const Norm& norm_;
  Loop panels_;  // its steps are panels
  int axis_;
  int64_t size_, columns_;
  int count_;
  T* data_[kMaxOperands];
  int64_t strides_[kMaxOperands][2];  // of a row and of a column
  bool is_copied_[kMaxOperands];
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
