#include "core/heads.h"

#include <algorithm>
#include <utility>

namespace fuseconv {

Spec adjacent_heads(Spec sizes) {
  const int32_t heads = sizes.rank - 3;
  std::swap(sizes.sizes[heads], sizes.sizes[heads + 1]);
  Spec result = contiguous_like(sizes);
  std::swap(result.sizes[heads], result.sizes[heads + 1]);
  std::swap(result.strides[heads], result.strides[heads + 1]);
  return result;
}

Spec heads_in_groups(In x, int64_t heads, int64_t groups) {
  const int32_t axis = x.rank - 3;
  const bool repeats = x.sizes[axis] != heads;
  Spec view{x.dtype, x.rank + 1, {}, {}};
  std::copy_n(x.sizes, axis, view.sizes);
  std::copy_n(x.strides, axis, view.strides);
  std::copy_n(x.sizes + axis, 3, view.sizes + axis + 1);
  std::copy_n(x.strides + axis, 3, view.strides + axis + 1);
  view.sizes[axis] = groups;
  view.sizes[axis + 1] = heads / groups;
  view.strides[axis] = x.strides[axis] * (repeats ? 1 : heads / groups);
  view.strides[axis + 1] = repeats ? 0 : x.strides[axis];
  return view;
}

}  // namespace fuseconv
