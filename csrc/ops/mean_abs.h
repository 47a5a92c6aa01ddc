// y[o] = mean over the dims `dim` of |x|. An empty `dim` means all dims.
#pragma once

#include <array>
#include <span>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"
#include "kernels/reduce.h"

namespace fuseconv {

struct MeanAbs {
  static constexpr const char* name = "mean_abs";
  static constexpr const char* schema = "mean_abs(Tensor x, int[] dim, bool keepdim=False) -> Tensor";

  struct Args {
    In x;
    std::span<const int64_t> dim;
    bool keepdim;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"x", args.x}});
    return {reduced(name, {"x", args.x}, args.dim, args.keepdim)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    reduce(host, Formula{}, y, args.x, args.dim);
  }

  struct Formula {
    // Sums start at +0, so that a term of -0 has no effect.
    template <class A>
    FUSECONV_INLINE void term(const A& x, A& t) const {
      t = x < 0 ? -x : x;
    }
    template <class A>
    FUSECONV_INLINE A finish(A total, int64_t count) const {
      return total / static_cast<A>(count);
    }
  };
};

}  // namespace fuseconv
