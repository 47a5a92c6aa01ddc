// A position in a Loop and the offset of its element in each operand. Compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

class Position {
 public:
  // Starts `steps` steps after the beginning of the loop. A step advances the innermost axis by one; at the end of an
  // axis, it carries into the next outer axis.
  Position(const Loop& loop, int operands, int64_t steps) : loop_(loop), operands_(operands), offsets_{} {
    for (int axis = loop.rank - 1; axis >= 0; --axis) {
      const int64_t size = std::max<int64_t>(loop.sizes[axis], 1);  // an empty loop also has a start
      index_[axis] = steps % size;
      steps /= size;
      for (int operand = 0; operand < operands; ++operand) {
        offsets_[operand] += index_[axis] * loop.strides[operand][axis];
      }
    }
  }

  // Returns the offsets in elements, one per operand.
  const int64_t* offsets() const { return offsets_; }

  // Returns the index along an axis.
  int64_t index(int axis) const { return index_[axis]; }

  // Returns the number of steps to the end of the innermost axis.
  int64_t left() const { return loop_.sizes[loop_.rank - 1] - index_[loop_.rank - 1]; }

  // Advances by at most left() steps.
  void advance(int64_t steps) {
    int axis = loop_.rank - 1;
    index_[axis] += steps;
    for (int operand = 0; operand < operands_; ++operand) {
      offsets_[operand] += steps * loop_.strides[operand][axis];
    }
    for (; axis > 0 && index_[axis] == loop_.sizes[axis]; --axis) {
      index_[axis] = 0;
      ++index_[axis - 1];
      for (int operand = 0; operand < operands_; ++operand) {
        offsets_[operand] += loop_.strides[operand][axis - 1] - loop_.sizes[axis] * loop_.strides[operand][axis];
      }
    }
  }

 private:
  const Loop& loop_;
  int operands_;
  int64_t index_[kMaxRank];
  int64_t offsets_[kMaxOperands];
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
