// Shapes and strides: the layout of an op's results and the index space of a kernel.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/check.h"
#include "core/tensor_view.h"

namespace fuseconv {

// Returns a contiguous result of these sizes.
Spec contiguous(Dtype dtype, int32_t rank, const int64_t* sizes);

// Returns a contiguous result with the sizes of `tensor`.
inline Spec contiguous_like(In tensor) { return contiguous(tensor.dtype, tensor.rank, tensor.sizes); }

// Returns the result of a pointwise op on two broadcast arguments. Its strides follow the strides of the arguments as
// in PyTorch (the dim order of the first argument that has one), so that a view of the eager result is also a view of
// this result.
Spec broadcast(const char* op, Argument a, Argument b);

// Returns the sizes and strides of `tensor` expanded to a shape of `rank` dims. Throws if the tensor does not broadcast
// to that shape.
Spec expand(const char* op, Argument tensor, int32_t rank, const int64_t* sizes);
// Returns the contiguous result of a reduction of `x` over `dims`. Negative dims count from the end; an empty list
// means all dims. If `keep_dims`, the reduced dims get size 1, otherwise they are removed. Checks that each dim exists
// and occurs once.
Spec reduced(const char* op, Argument x, std::span<const int64_t> dims, bool keep_dims);

bool is_contiguous(In tensor);

// Returns whether the tensor is dense and channels last, so that dim 1 of 4 or 5 dims is innermost. A tensor with one
// channel or one position is also contiguous.
bool fits_channels_last(In tensor);

// The same, but returns false for contiguous tensors.
inline bool is_channels_last(In tensor) { return !is_contiguous(tensor) && fits_channels_last(tensor); }

// Returns a channels-last result of these sizes: dim 1 of 4 or 5 dims is innermost.
Spec channels_last(Dtype dtype, int32_t rank, const int64_t* sizes);

int64_t element_count(In tensor);

// Returns the layout of a pointwise input: the layout of a tensor, or, for an object that computes values from indices,
// the layout of a contiguous result.
inline In places(In tensor, In) { return tensor; }
template <class Source>
In places(const Source&, In row_major) {
  return row_major;
}

inline constexpr int kMaxOperands = 4;

// The index space of a kernel over a result and its broadcast inputs. Dims of size 1 are dropped. The other dims are
// ordered by the strides of the result, outermost first, and merged where all operands allow it. Operand 0 is the
// result.
struct Loop {
  int32_t rank;  // at least 1
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxOperands][kMaxRank];

  int64_t count() const {
    int64_t total = 1;
    for (int axis = 0; axis < rank; ++axis) {
      total *= sizes[axis];
    }
    return total;
  }
};

// Returns the loop over every element.
Loop element_loop(Out result, std::initializer_list<In> inputs);

// Returns the loop over the rows (all dims but the last) of tensors of one shape. Strides are between the first
// elements of rows.
Loop row_loop(const In* tensors, int count);

// The two loops of a reduction over `dims` of x, both in the memory order of x. `reduced` has checked the dims. The
// operands of `kept` are the contiguous result and x; the operand of `taken` is x.
struct ReductionLoops {
  Loop kept;
  Loop taken;
};
ReductionLoops reduction_loops(In x, std::span<const int64_t> dims);

}  // namespace fuseconv
