// y = tanh(a * b), with broadcasting
#pragma once

#include <array>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct MulTanh {
  static constexpr const char* name = "mul_tanh";
  static constexpr const char* schema = "mul_tanh(Tensor a, Tensor b) -> Tensor";

  struct Args {
    In a, b;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"a", args.a}, {"b", args.b}});
    return {broadcast(name, {"a", args.a}, {"b", args.b})};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    pointwise(host, Formula{}, y, args.a, args.b);
  }

  struct Formula {
    template <class A>
    FUSECONV_INLINE A operator()(A a, A b) const {
      return hyperbolic_tangent(a * b);
    }
  };
};

}  // namespace fuseconv
