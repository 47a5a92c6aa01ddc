// y[..., s, t] = softmax over t of (scale * sum_d q[..., s, d] k[..., t, d] + mask[..., s, t])
//
// The host's GEMM computes the product and writes it to y; the scale is applied before rounding. One in-place pass over
// y then adds the mask and computes the softmax. In f16 and bf16, this pass starts from the rounded score, computes in
// f32 and rounds once.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "core/host.h"
#include "core/layout.h"
#include "kernels/softmax.h"

namespace fuseconv {

struct AttentionScore {
  static constexpr const char* name = "attention_score";
  static constexpr const char* schema =
      "attention_score(Tensor q, Tensor k, Tensor? mask=None, float scale=1.0) -> Tensor";

  struct Args {
    In q, k;
    std::optional<In> mask;
    double scale;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"q", args.q}, {"k", args.k}});
    check(args.q.rank >= 2, "fuseconv::", name, ": q must have the shape [..., S, D], but has ", SizesText{args.q});
    check(args.k.rank >= 2 && args.k.sizes[args.k.rank - 1] == args.q.sizes[args.q.rank - 1], "fuseconv::", name,
          ": k must have the shape [..., T, ", args.q.sizes[args.q.rank - 1], "], the last dim of q, but has ",
          SizesText{args.k});
    Spec y = broadcast(name, {"q without its last two dims", leading(args.q)},
                       {"k without its last two dims", leading(args.k)});
    y.rank += 2;
    check(y.rank <= kMaxRank, "fuseconv::", name, ": q and k may have at most ", kMaxRank, " dims");
    y.sizes[y.rank - 2] = args.q.sizes[args.q.rank - 2];
    y.sizes[y.rank - 1] = args.k.sizes[args.k.rank - 2];
    y = contiguous_like(y);
    if (args.mask) {
      check(
          args.mask->dtype == args.q.dtype, "fuseconv::", name,
          ": mask is added to the scores and must have the dtype of q; in place of a bool mask, which is True "
          "where a position is visible, pass torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float('-inf'))");
      expand(name, {"mask", *args.mask}, y.rank, y.sizes);
    }
    return {y};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    int64_t sizes[kMaxRank];
    const auto expanded = [&](In x) {
      std::copy_n(y.sizes, y.rank, sizes);
      std::copy_n(x.sizes + x.rank - 2, 2, sizes + y.rank - 2);
      return expand(name, {"", x}, y.rank, sizes);
    };
    const auto [q, k, mask, scale] = args;
    const Spec all_q = expanded(q), all_k = expanded(k);
    host.batched_product(In{q.data, q.dtype, all_q.rank, all_q.sizes, all_q.strides},
                         In{k.data, k.dtype, all_k.rank, all_k.sizes, all_k.strides}, scale, y);
    if (mask) {
      const Spec all = expand(name, {"mask", *mask}, y.rank, y.sizes);
      softmax(host, Softmax{y, In{mask->data, mask->dtype, all.rank, all.sizes, all.strides}, false});
    } else {
      softmax(host, Softmax{y, std::nullopt, false});
    }
  }

 private:
  static In leading(In x) { return {x.data, x.dtype, x.rank - 2, x.sizes, x.strides}; }
};

}  // namespace fuseconv
