// y[i] = gelu(x[i]) * keep[i] / (1 - p), where i is the row-major index of the element. keep[i] is 0 with probability p
// and otherwise 1. The Philox generator of kernels/philox.h computes keep[i] from the seed and i. The op is a pure
// function of its inputs: every device drops the same elements.
#pragma once

#include <array>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/keep_factors.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct GeluDropout {
  static constexpr const char* name = "gelu_dropout";
  static constexpr const char* schema = "gelu_dropout(Tensor x, Tensor seed, float p) -> Tensor";

  struct Args {
    In x;
    InI64 seed;
    double p;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"x", args.x}});
    check(args.seed.dtype == Dtype::i64 && element_count(args.seed) == 1, "fuseconv::", name,
          ": seed must be an int64 tensor of one element, but has the shape ", SizesText{args.seed},
          args.seed.dtype == Dtype::i64 ? "" : " and another dtype");
    check(0 <= args.p && args.p <= 1, "fuseconv::", name, ": p must be from 0 to 1, but is ", args.p);
    return {broadcast(name, {"x", args.x}, {"x", args.x})};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    pointwise(host, Formula{}, y, args.x, keep_factors(host, KeepFactors(args.seed.data, args.p)));
  }

  struct Formula {
    static constexpr bool kCostly = true;  // the formula is compute-bound

    template <class A>
    FUSECONV_INLINE A operator()(A x, A factor) const {
      const A y = Gelu{}(x);
      return y * factor;
    }
  };
};

}  // namespace fuseconv
