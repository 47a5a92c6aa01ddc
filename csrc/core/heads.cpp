#include "core/heads.h"

#include <algorithm>
#include <utility>

namespace fuseconv {

void check_heads(const char* op, In q, In k, In v) {
  check(q.rank >= 3, "fuseconv::", op, ": q must have the shape [..., H, S, D], but has ", SizesText{q});
  const int32_t heads = q.rank - 3;
  check(k.rank == q.rank && std::equal(k.sizes, k.sizes + heads, q.sizes) && k.sizes[heads + 2] == q.sizes[heads + 2],
        "fuseconv::", op, ": k must have the dims before the heads and the last dim of q, ", SizesText{q}, ", but has ",
        SizesText{k});
  const int64_t count = q.sizes[heads], groups = k.sizes[heads];
  check(groups == count || (groups > 0 && count % groups == 0), "fuseconv::", op, ": the ", groups,
        " heads of k must divide the ", count, " heads of q");
  check(v.rank == q.rank && std::equal(v.sizes, v.sizes + heads + 2, k.sizes), "fuseconv::", op,
        ": v must have the dims of k, ", SizesText{k}, ", except for the last, but has ", SizesText{v});
  check(groups == count || q.rank < kMaxRank, "fuseconv::", op, ": q may have at most ", kMaxRank - 1,
        " dims if k has fewer heads than q, but has ", SizesText{q});
}

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
