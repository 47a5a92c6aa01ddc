// y[..., h, s, :] = sum over t <= s of p[..., s, t] v[..., g, t, :],
// p = softmax over t <= s of scale q[..., h, s, :] k[..., g, t, :],  g = h // (H / G)
//
// q has H heads, k and v have G heads, and G divides H. y is stored as [..., S, H, E], as attention's result is.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/grouped_attention.h"

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
    check_heads(name, q, k, v);
    const int32_t heads = q.rank - 3;
    check(k.sizes[heads + 1] == q.sizes[heads + 1], "fuseconv::", name, ": k must have the ", q.sizes[heads + 1],
          " positions of q, but has ", k.sizes[heads + 1],
          "; keys of other positions need the op attention and a mask of the visible keys");
    Spec y{q.dtype, q.rank, {}, {}};
    std::copy_n(q.sizes, heads + 2, y.sizes);
    y.sizes[heads + 2] = v.sizes[heads + 2];
    return {adjacent_heads(y)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    const auto& [q, k, v, scale] = args;
    if (element_count(y) != 0) {
      grouped_attention(host, AttentionProblem{q, k, v, std::nullopt, true, scale, y});
    }
  }
};

}  // namespace fuseconv
