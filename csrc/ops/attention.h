// y[..., h, s, :] = sum over t of p[..., s, t] v[..., g, t, :],
// p = softmax over t of (scale q[..., h, s, :] k[..., g, t, :] + mask[..., h, s, t]),  g = h // (H / G)
//
// q has H heads, k and v have G heads, and G divides H. y is stored as [..., S, H, E] where its sizes are [..., H, S,
// E], so that the heads of a position are adjacent, as the layer after attention reads them.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/grouped_attention.h"

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
    check_heads(name, q, k, v);
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
    grouped_attention(host, AttentionProblem{q, k, v, expanded, false, scale, y});
  }
};

}  // namespace fuseconv
