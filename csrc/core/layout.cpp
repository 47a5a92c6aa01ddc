#include "core/layout.h"

#include <algorithm>
#include <bitset>
#include <numeric>

namespace fuseconv {
namespace {

// Returns the stride of `tensor` along axis `axis` of a result with `rank` dims, or 0 if the tensor is broadcast along
// this axis. The dims of the tensor are aligned with the last dims of the result.
int64_t broadcast_stride(In tensor, int rank, int axis, int64_t size) {
  const int own = axis - (rank - tensor.rank);
  return own < 0 || (tensor.sizes[own] == 1 && size != 1) ? 0 : tensor.strides[own];
}

bool same_sizes(In a, In b) { return a.rank == b.rank && std::equal(a.sizes, a.sizes + a.rank, b.sizes); }

// Sorts a small number of axes by the comparison `before`. Axes that compare equal keep their order.
template <class Before>
void sort_axes(int* begin, int* end, Before before) {
  for (int* next = begin; next < end; ++next) {
    for (int* axis = next; axis > begin && before(axis[0], axis[-1]); --axis) {
      std::swap(axis[0], axis[-1]);
    }
  }
}

// Returns whether the elements of a tensor fill one block of memory without gaps or overlaps, in any order of its dims.
bool is_dense(In tensor) {
  int axes[kMaxRank];
  int* end = axes;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.sizes[axis] != 1) {
      *end++ = axis;
    }
  }
  sort_axes(axes, end, [&](int a, int b) { return tensor.strides[a] < tensor.strides[b]; });
  int64_t expected = 1;
  for (const int* axis = axes; axis != end; ++axis) {
    if (tensor.strides[*axis] != expected) {
      return false;
    }
    expected *= tensor.sizes[*axis];
  }
  return true;
}

// Orders the axes of a result innermost first. Two axes are ordered by the strides of the first argument that
// distinguishes them. The comparison is not transitive if arguments are broadcast. Therefore this is an insertion sort,
// as in PyTorch's TensorIterator, whose results it must reproduce.
void order_axes(int* order, const Spec& result, In a, In b) {
  const auto goes_after = [&](int axis, int other) {
    for (const In& tensor : {a, b}) {
      const int64_t stride = broadcast_stride(tensor, result.rank, axis, result.sizes[axis]);
      const int64_t other_stride = broadcast_stride(tensor, result.rank, other, result.sizes[other]);
      if (stride == 0 || other_stride == 0) {
        continue;
      }
      if (stride != other_stride) {
        return stride > other_stride ? 1 : -1;
      }
      if (result.sizes[axis] > result.sizes[other]) {
        return 1;
      }
    }
    return 0;
  };
  for (int i = 0; i < result.rank; ++i) {
    order[i] = result.rank - 1 - i;
  }
  for (int i = 1; i < result.rank; ++i) {
    int moving = i;
    for (int j = i - 1; j >= 0; --j) {
      const int comparison = goes_after(order[j], order[moving]);
      if (comparison < 0) {
        break;
      }
      if (comparison > 0) {
        std::swap(order[j], order[moving]);
        moving = j;
      }
    }
  }
}

// Appends an axis to the loop as the new innermost axis, or merges it into the present innermost axis if, in every
// operand, one stride describes both axes.
void append_axis(Loop& loop, int operands, int64_t size, const int64_t* strides) {
  if (size == 1) {
    return;
  }
  bool merges = loop.rank > 0;
  for (int operand = 0; merges && operand < operands; ++operand) {
    merges = loop.strides[operand][loop.rank - 1] == strides[operand] * size;
  }
  const int axis = merges ? loop.rank - 1 : loop.rank++;
  loop.sizes[axis] = merges ? loop.sizes[axis] * size : size;
  for (int operand = 0; operand < operands; ++operand) {
    loop.strides[operand][axis] = strides[operand];
  }
}

void finish(Loop& loop, int operands) {
  if (loop.rank == 0) {
    loop.rank = 1;
    loop.sizes[0] = 1;
    for (int operand = 0; operand < operands; ++operand) {
      loop.strides[operand][0] = 1;
    }
  }
}

// Returns the set of axes of a tensor that `dims` names, or all axes if `dims` is empty.
std::bitset<kMaxRank> axes_of(std::span<const int64_t> dims, int rank) {
  std::bitset<kMaxRank> axes;
  if (dims.empty()) {
    axes.set();
  }
  for (const int64_t dim : dims) {
    axes.set(dim < 0 ? dim + rank : dim);
  }
  return axes;
}

}  // namespace

Spec contiguous(Dtype dtype, int32_t rank, const int64_t* sizes) {
  Spec spec{dtype, rank, {}, {}};
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    spec.sizes[axis] = sizes[axis];
    spec.strides[axis] = stride;
    stride *= std::max<int64_t>(sizes[axis], 1);
  }
  return spec;
}

bool fits_channels_last(In tensor) {
  if (tensor.rank < 3 || tensor.rank > 5) {
    return false;
  }
  const Spec expected = channels_last(tensor.dtype, tensor.rank, tensor.sizes);
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.sizes[axis] != 1 && tensor.strides[axis] != expected.strides[axis]) {
      return false;
    }
  }
  return true;
}

bool is_channels_last(In tensor) {
  if (tensor.rank < 3 || tensor.rank > 5 || is_contiguous(tensor)) {
    return false;
  }
  int64_t extent = tensor.strides[1] * tensor.sizes[1];
  const auto follows = [&](int axis) {
    const int64_t size = tensor.sizes[axis], stride = tensor.strides[axis];
    if (size != 1 && stride < extent) {
      return false;
    }
    extent = size == 1 ? extent : stride * size;
    return true;
  };
  bool all = tensor.sizes[1] == 1 || tensor.strides[1] == 1;
  for (int axis = tensor.rank - 1; axis >= 2; --axis) {
    all = all && follows(axis);
  }
  return all && follows(0);
}

Spec channels_last(Dtype dtype, int32_t rank, const int64_t* sizes) {
  Spec spec{dtype, rank, {}, {}};
  std::copy_n(sizes, rank, spec.sizes);
  int64_t stride = 1;
  const auto next = [&](int axis) {
    spec.strides[axis] = stride;
    stride *= std::max<int64_t>(sizes[axis], 1);
  };
  next(1);
  for (int axis = rank - 1; axis >= 2; --axis) {
    next(axis);
  }
  next(0);
  return spec;
}

bool is_contiguous(In tensor) {
  if (element_count(tensor) == 0) {
    return true;
  }
  int64_t expected = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    if (tensor.sizes[axis] != 1 && tensor.strides[axis] != expected) {
      return false;
    }
    expected *= tensor.sizes[axis];
  }
  return true;
}

int64_t element_count(In tensor) {
  return std::accumulate(tensor.sizes, tensor.sizes + tensor.rank, int64_t{1}, std::multiplies<>{});
}

Spec broadcast(const char* op, Argument a, Argument b) {
  Spec result{a.tensor.dtype, std::max(a.tensor.rank, b.tensor.rank), {}, {}};
  for (int axis = 0; axis < result.rank; ++axis) {
    const int own_a = axis - (result.rank - a.tensor.rank);
    const int own_b = axis - (result.rank - b.tensor.rank);
    const int64_t size_a = own_a < 0 ? 1 : a.tensor.sizes[own_a];
    const int64_t size_b = own_b < 0 ? 1 : b.tensor.sizes[own_b];
    check(size_a == size_b || size_a == 1 || size_b == 1, "fuseconv::", op, ": ", a.name, " of shape ",
          SizesText{a.tensor}, " and ", b.name, " of shape ", SizesText{b.tensor}, " cannot be broadcast together");
    result.sizes[axis] = size_a == 1 ? size_b : size_a;
  }
  if (same_sizes(a.tensor, b.tensor)) {
    if (is_contiguous(a.tensor) && is_contiguous(b.tensor)) {
      return contiguous_like(a.tensor);
    }
    if (std::equal(a.tensor.strides, a.tensor.strides + a.tensor.rank, b.tensor.strides) && is_dense(a.tensor)) {
      std::copy_n(a.tensor.strides, a.tensor.rank, result.strides);
      return result;
    }
  }
  int order[kMaxRank];
  order_axes(order, result, a.tensor, b.tensor);
  bool identity = true;
  int64_t stride = 1;
  for (int i = 0; i < result.rank; ++i) {
    identity &= order[i] == result.rank - 1 - i;
    result.strides[order[i]] = stride;
    stride *= result.sizes[order[i]];
  }
  return identity ? contiguous_like(result) : result;
}

Spec expand(const char* op, Argument tensor, int32_t rank, const int64_t* sizes) {
  Spec result = contiguous(tensor.tensor.dtype, rank, sizes);
  bool expands = tensor.tensor.rank <= rank;
  for (int axis = 0; expands && axis < rank; ++axis) {
    const int own = axis - (rank - tensor.tensor.rank);
    expands = own < 0 || tensor.tensor.sizes[own] == 1 || tensor.tensor.sizes[own] == sizes[axis];
    result.strides[axis] = broadcast_stride(tensor.tensor, rank, axis, sizes[axis]);
  }
  check(expands, "fuseconv::", op, ": ", tensor.name, " of shape ", SizesText{tensor.tensor},
        " cannot be broadcast to ", SizesText{result});
  return result;
}

Loop element_loop(Out result, std::initializer_list<In> inputs) {
  int axes[kMaxRank];
  std::iota(axes, axes + result.rank, 0);
  sort_axes(axes, axes + result.rank, [&](int a, int b) { return result.strides[a] > result.strides[b]; });
  Loop loop{};
  for (int i = 0; i < result.rank; ++i) {
    const int64_t size = result.sizes[axes[i]];
    int64_t strides[kMaxOperands] = {result.strides[axes[i]]};
    int64_t* next = strides;
    for (const In& input : inputs) {
      *++next = broadcast_stride(input, result.rank, axes[i], size);
    }
    append_axis(loop, 1 + static_cast<int>(inputs.size()), size, strides);
  }
  finish(loop, 1 + static_cast<int>(inputs.size()));
  return loop;
}

Loop row_loop(const In* tensors, int count) {
  Loop loop{};
  for (int axis = 0; axis + 1 < tensors[0].rank; ++axis) {
    int64_t strides[kMaxOperands];
    for (int operand = 0; operand < count; ++operand) {
      strides[operand] = tensors[operand].strides[axis];
    }
    append_axis(loop, count, tensors[0].sizes[axis], strides);
  }
  finish(loop, count);
  return loop;
}

Spec reduced(const char* op, Argument x, std::span<const int64_t> dims, bool keep_dims) {
  const int64_t rank = std::max(x.tensor.rank, 1);  // a scalar has one dim, dim 0
  std::bitset<kMaxRank> named;
  for (const int64_t dim : dims) {
    check(-rank <= dim && dim < rank, "fuseconv::", op, ": dim has ", dim, ", but ", x.name, " of shape ",
          SizesText{x.tensor}, " has the dims ", -rank, " to ", rank - 1);
    const int64_t axis = dim < 0 ? dim + rank : dim;
    check(!named[axis], "fuseconv::", op, ": dim names the dim ", axis, " of ", x.name, " twice");
    named.set(axis);
  }
  const std::bitset<kMaxRank> taken = axes_of(dims, static_cast<int>(rank));
  Spec result{x.tensor.dtype, 0, {}, {}};
  for (int axis = 0; axis < x.tensor.rank; ++axis) {
    if (!taken[axis] || keep_dims) {
      result.sizes[result.rank++] = taken[axis] ? 1 : x.tensor.sizes[axis];
    }
  }
  return contiguous_like(result);
}

ReductionLoops reduction_loops(In x, std::span<const int64_t> dims) {
  const std::bitset<kMaxRank> taken = axes_of(dims, std::max(x.rank, 1));
  int64_t result_strides[kMaxRank] = {};
  int64_t stride = 1;
  int axes[kMaxRank];
  for (int axis = x.rank - 1; axis >= 0; --axis) {
    axes[axis] = axis;
    if (!taken[axis]) {
      result_strides[axis] = stride;
      stride *= x.sizes[axis];
    }
  }
  // An expanded axis goes outermost, because consecutive indices along it have no locality.
  sort_axes(axes, axes + x.rank,
            [&](int a, int b) { return x.strides[b] != 0 && (x.strides[a] == 0 || x.strides[a] > x.strides[b]); });
  ReductionLoops loops{};
  for (int i = 0; i < x.rank; ++i) {
    const int axis = axes[i];
    if (taken[axis]) {
      append_axis(loops.taken, 1, x.sizes[axis], &x.strides[axis]);
    } else {
      const int64_t strides[] = {result_strides[axis], x.strides[axis]};
      append_axis(loops.kept, 2, x.sizes[axis], strides);
    }
  }
  finish(loops.kept, 2);
  finish(loops.taken, 1);
  return loops;
}

}  // namespace fuseconv
