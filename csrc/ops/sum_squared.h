// y[o] = sum over the dims `dim` of x^2. An empty `dim` means all dims.
#pragma once

#include <array>
#include <span>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"
#include "kernels/reduce.h"

namespace fuseconv {

struct SumSquared {
  static constexpr const char* name = "sum_squared";
  static constexpr const char* schema = "sum_squared(Tensor x, int[] dim, bool keepdim=False) -> Tensor";

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
    template <class A>
    FUSECONV_INLINE void term(const A& x, A& t) const {
      t = x * x;
    }
    template <class A>
    FUSECONV_INLINE A finish(A total, int64_t) const {
      return total;
    }
  };
};

}  // namespace fuseconv
