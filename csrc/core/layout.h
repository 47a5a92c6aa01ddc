// Shapes and strides: what an op's results look like, and the index space that a kernel walks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/check.h"
#include "core/tensor_view.h"

namespace fuseconv {

// A result of these sizes, contiguous.
Spec contiguous(Dtype dtype, int32_t rank, const int64_t* sizes);

// A contiguous result of the sizes of `tensor`.
inline Spec contiguous_like(In tensor) { return contiguous(tensor.dtype, tensor.rank, tensor.sizes); }

// The result of a pointwise op on two broadcast arguments. Its strides follow the arguments' as PyTorch's do (the order
// of dims of the first argument that has one), so that a view of the eager op's result is a view of this one too.
Spec broadcast(const char* op, Argument a, Argument b);

// The sizes and strides of `tensor` expanded to a shape that it broadcasts to, of `rank` dims; throws if it does not.
Spec expand(const char* op, Argument tensor, int32_t rank, const int64_t* sizes);
// The result, contiguous, of a reduction of `x` over `dims`: negative ones count from the end, none at all means all of
// them. Their sizes become 1 if `keep_dims`, else they go. Checks that each dim is there and is named once.
Spec reduced(const char* op, Argument x, std::span<const int64_t> dims, bool keep_dims);

bool is_contiguous(In tensor);

// Whether the tensor is dense with the channels, dim 1 of 4 or 5, innermost. It may be contiguous besides, where it has
// one channel or one position.
bool fits_channels_last(In tensor);

// The same, and not contiguous.
inline bool is_channels_last(In tensor) { return !is_contiguous(tensor) && fits_channels_last(tensor); }

// A result of these sizes with the channels, dim 1 of 4 or 5, innermost.
Spec channels_last(Dtype dtype, int32_t rank, const int64_t* sizes);

int64_t element_count(In tensor);

// Where the elements of a pointwise input are: a tensor's where they lie, those of an object that makes values from
// indices where a contiguous result has them.
inline In places(In tensor, In) { return tensor; }
template <class Source>
In places(const Source&, In row_major) {
  return row_major;
}

inline constexpr int kMaxOperands = 4;

// The index space of a kernel over a result and its broadcast inputs: dims of one element are dropped, the others are
// ordered by the result's strides, outermost first, and merged where all operands allow it. Operand 0 is the result.
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

// The loop over every element.
Loop element_loop(Out result, std::initializer_list<In> inputs);

// The loop over the rows (all dims but the last) of tensors of one shape; strides are those of the rows' first
// elements.
Loop row_loop(const In* tensors, int count);

// The two loops of a reduction over `dims` of x, which `reduced` has checked, both in the order of x's memory. Operands
// of `kept` are the result, contiguous, and x; that of `taken` is x.
struct ReductionLoops {
  Loop kept;
  Loop taken;
};
ReductionLoops reduction_loops(In x, std::span<const int64_t> dims);

}  // namespace fuseconv
