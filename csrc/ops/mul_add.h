// y = a * b + c, with broadcasting
#pragma once

#include <array>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct MulAdd {
  static constexpr const char* name = "mul_add";
  static constexpr const char* schema = "mul_add(Tensor a, Tensor b, Tensor c) -> Tensor";

  struct Args {
    In a, b, c;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"a", args.a}, {"b", args.b}, {"c", args.c}});
    const Spec product = broadcast(name, {"a", args.a}, {"b", args.b});
    return {broadcast(name, {"a * b", product}, {"c", args.c})};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    pointwise(host, Formula{}, y, args.a, args.b, args.c);
  }

  struct Formula {
    template <class A>
    FUSECONV_INLINE A operator()(A a, A b, A c) const {
      return a * b + c;
    }
  };
};

}  // namespace fuseconv
