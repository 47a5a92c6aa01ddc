// y[..., s, :] = sum over t of p[..., s, t] v[..., t, :],  p = softmax over t of (scale q[..., s, :] k[..., t, :] +
// mask)
//
// y is stored as [..., S, H, E] where its sizes are [..., H, S, E], so that the heads of a position are adjacent, as
// the layer after attention reads them.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "core/heads.h"
#include "kernels/attention.h"

namespace fuseconv {

struct Attention {
  static constexpr const char* name = "attention";
  static constexpr const char* schema =
      "attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, float scale=1.0) -> Tensor";

  struct Args {
    In q, k, v;
    std::optional<In> mask;
    double scale;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    const auto& [q, k, v, mask, scale] = args;
    common_dtype(name, {{"q", q}, {"k", k}, {"v", v}});
    check(q.rank >= 3, "fuseconv::", name, ": q must have the shape [..., H, S, D], but has ", SizesText{q});
    const int64_t width = q.sizes[q.rank - 1];
    check(has_leading(k, q) && k.sizes[k.rank - 1] == width, "fuseconv::", name,
          ": k must have the leading dims and the last dim of q, ", SizesText{q}, ", but has ", SizesText{k});
    check(has_leading(v, q) && v.sizes[v.rank - 2] == k.sizes[k.rank - 2], "fuseconv::", name,
          ": v must have the leading dims and the positions of k, ", SizesText{k}, ", but has ", SizesText{v});
    Spec y{q.dtype, q.rank, {}, {}};
    std::copy_n(q.sizes, q.rank - 1, y.sizes);
    y.sizes[y.rank - 1] = v.sizes[v.rank - 1];
    if (mask) {
      check(mask->dtype == q.dtype, "fuseconv::", name, ": mask is added to the scores and must have the dtype of q");
      int64_t scores[kMaxRank];
      std::copy_n(y.sizes, y.rank - 1, scores);
      scores[y.rank - 1] = k.sizes[k.rank - 2];
      expand(name, {"mask", *mask}, y.rank, scores);
    }
    return {adjacent_heads(y)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    const auto& [q, k, v, mask, scale] = args;
    if (element_count(y) == 0) {
      return;
    }
    std::optional<Spec> all;
    std::optional<In> expanded;
    if (mask) {
      int64_t scores[kMaxRank];
      std::copy_n(y.sizes, y.rank - 1, scores);
      scores[y.rank - 1] = k.sizes[k.rank - 2];
      all = expand(name, {"mask", *mask}, y.rank, scores);
      expanded = In{mask->data, mask->dtype, all->rank, all->sizes, all->strides};
    }
    attention(host, AttentionProblem{q, k, v, expanded, false, scale, y});
  }

 private:
  static bool has_leading(In x, In q) { return x.rank == q.rank && std::equal(x.sizes, x.sizes + x.rank - 2, q.sizes); }
};

}  // namespace fuseconv
