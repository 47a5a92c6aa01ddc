// Shapes and strides: the layout of an op's results and the index space of a kernel.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/check.h"
#include "core/tensor_view.h"

namespace fuseconv {

// Returns the Spec of a contiguous tensor with this dtype and these sizes.
Spec contiguous(Dtype dtype, int32_t rank, const int64_t* sizes);

// Returns the Spec of a contiguous tensor with the dtype and sizes of `tensor`.
inline Spec contiguous_like(In tensor) { return contiguous(tensor.dtype, tensor.rank, tensor.sizes); }

// Returns the Spec of the result of a pointwise op on two arguments, which are broadcast. The result has the same
// strides as in PyTorch, where the dims are ordered as in the first argument that determines an order. Therefore a view
// that is possible for the eager result is also possible for this result.
Spec broadcast(const char* op, Argument a, Argument b);

// Returns the sizes and strides of `tensor` expanded to a shape of `rank` dims. Throws if the tensor does not broadcast
// to that shape.
Spec expand(const char* op, Argument tensor, int32_t rank, const int64_t* sizes);
// Returns the Spec of the contiguous result of a reduction of `x` over `dims`. Negative dims count from the end; an
// empty list means all dims. If `keep_dims` is true, the reduced dims get size 1, otherwise they are removed. Throws
// std::runtime_error if a dim does not exist or occurs twice.
Spec reduced(const char* op, Argument x, std::span<const int64_t> dims, bool keep_dims);

bool is_contiguous(In tensor);

// Returns whether the tensor is dense and channels last: it has 3 to 5 dims, of which dim 1 is innermost. A
// channels-last tensor with one channel or one position is also contiguous.
bool fits_channels_last(In tensor);

// Returns whether a tensor is not contiguous, and its dims are in the order of a channels-last tensor. Unlike a dense
// one, it may have gaps: some of the channels, or of the positions, of a wider tensor.
bool is_channels_last(In tensor);

// Returns the Spec of a channels-last tensor with these sizes: of its 3 to 5 dims, dim 1 is innermost.
Spec channels_last(Dtype dtype, int32_t rank, const int64_t* sizes);

int64_t element_count(In tensor);

// Returns the layout of an input of a pointwise kernel. If the input is a tensor, returns the tensor itself. If the
// input is an object that computes values from row-major indices, returns `row_major`.
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

// Returns the loop over every element of the result.
Loop element_loop(Out result, std::initializer_list<In> inputs);

// Returns the loop over the rows of `count` tensors of the same shape, that is, over all dims but the last. Its strides
// are distances between the first elements of rows.
Loop row_loop(const In* tensors, int count);

// The two loops of a reduction of x: `kept` is over the dims that remain, `taken` over the reduced dims. Both are in
// the memory order of x. The operands of `kept` are the contiguous result and x; the only operand of `taken` is x. The
// caller has checked the dims with `reduced`.
struct ReductionLoops {
  Loop kept;
  Loop taken;
};
ReductionLoops reduction_loops(In x, std::span<const int64_t> dims);

}  // namespace fuseconv
