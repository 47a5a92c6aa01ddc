// Attention whose keys and values may have fewer heads than its queries (grouped-query attention).
#pragma once

#include "core/heads.h"
#include "kernels/attention.h"

namespace fuseconv {

// Computes attention as kernels/attention.h describes, except that k and v have G heads and the other tensors H. Head h
// of the queries uses head h / (H / G) of k and v, which are not copied.
template <class Host>
void grouped_attention(Host& host, const AttentionProblem& p) {
  const int64_t heads = p.q.sizes[p.q.rank - 3], groups = p.k.sizes[p.k.rank - 3];
  if (heads == groups) {
    attention(host, p);
    return;
  }
  const auto in_groups = [&](In x) { return heads_in_groups(x, heads, groups); };
  const auto view = [](In x, const Spec& spec) { return In{x.data, x.dtype, spec.rank, spec.sizes, spec.strides}; };
  const Spec q = in_groups(p.q), k = in_groups(p.k), v = in_groups(p.v), y = in_groups(p.y);
  const Spec masks = p.mask ? in_groups(*p.mask) : Spec{};
  AttentionProblem grouped{view(p.q, q), view(p.k, k), view(p.v, v), {}, p.is_causal, p.scale, p.y};
  if (p.mask) {
    grouped.mask = view(*p.mask, masks);
  }
  grouped.y = Out{p.y.data, p.y.dtype, y.rank, y.sizes, y.strides};
  attention(host, grouped);
}

}  // namespace fuseconv
