// y[..., h, s, :] = sum over t <= s of p[..., s, t] v[..., g, t, :],
// p = softmax over t <= s of scale q[..., h, s, :] k[..., g, t, :],  g = h // (H / G)
//
// q has H heads, k and v have G heads, and G divides H. y is stored as [..., S, H, E], as attention's result is.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "core/heads.h"
#include "kernels/attention.h"

namespace fuseconv {

struct CausalAttention {
  static constexpr const char* name = "causal_attention";
  static constexpr const char* schema = "causal_attention(Tensor q, Tensor k, Tensor v, float scale=1.0) -> Tensor";

  struct Args {
    In q, k, v;
    double scale;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    const auto& [q, k, v, scale] = args;
    common_dtype(name, {{"q", q}, {"k", k}, {"v", v}});
    check(q.rank >= 3, "fuseconv::", name, ": q must have the shape [..., H, S, D], but has ", SizesText{q});
    const int32_t heads = q.rank - 3;
    check(k.rank == q.rank && std::equal(k.sizes, k.sizes + heads, q.sizes) && k.sizes[heads + 2] == q.sizes[heads + 2],
          "fuseconv::", name, ": k must have the dims before the heads and the last dim of q, ", SizesText{q},
          ", but has ", SizesText{k});
    check(k.sizes[heads + 1] == q.sizes[heads + 1], "fuseconv::", name, ": k must have the ", q.sizes[heads + 1],
          " positions of q, but has ", k.sizes[heads + 1],
          "; keys of other positions need the op attention and a mask of the visible keys");
    const int64_t count = q.sizes[heads], groups = k.sizes[heads];
    check(groups == count || (groups > 0 && count % groups == 0), "fuseconv::", name, ": the ", groups,
          " heads of k must divide the ", count, " heads of q");
    check(v.rank == q.rank && std::equal(v.sizes, v.sizes + heads + 2, k.sizes), "fuseconv::", name,
          ": v must have the dims of k, ", SizesText{k}, ", except for the last, but has ", SizesText{v});
    check(groups == count || q.rank < kMaxRank, "fuseconv::", name, ": q may have at most ", kMaxRank - 1,
          " dims if k has fewer heads than q, but has ", SizesText{q});
    Spec y{q.dtype, q.rank, {}, {}};
    std::copy_n(q.sizes, heads + 2, y.sizes);
    y.sizes[heads + 2] = v.sizes[heads + 2];
    return {adjacent_heads(y)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    const auto& [q, k, v, scale] = args;
    if (element_count(y) == 0) {
      return;
    }
    const int64_t heads = q.sizes[q.rank - 3], groups = k.sizes[k.rank - 3];
    if (heads == groups) {
      attention(host, AttentionProblem{q, k, v, std::nullopt, true, scale, y});
      return;
    }
    const auto in_groups = [&](In x) { return heads_in_groups(x, heads, groups); };
    const Spec qs = in_groups(q), ks = in_groups(k), vs = in_groups(v), ys = in_groups(y);
    const auto view = [](In x, const Spec& spec) { return In{x.data, x.dtype, spec.rank, spec.sizes, spec.strides}; };
    const Out grouped{y.data, y.dtype, ys.rank, ys.sizes, ys.strides};
    attention(host, AttentionProblem{view(q, qs), view(k, ks), view(v, vs), std::nullopt, true, scale, grouped});
  }
};

}  // namespace fuseconv
