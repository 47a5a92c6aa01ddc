// y[..., c] = act(x[..., c] + bias[c])
#pragma once

#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct BiasAct {
  static constexpr const char* name = "bias_act";
  static constexpr const char* schema = "bias_act(Tensor x, Tensor bias, str act) -> Tensor";

  struct Args {
    In x, bias;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"x", args.x}, {"bias", args.bias}});
    check_vector(name, {"bias", args.bias}, {"x", args.x});
    parse_activation(name, args.act);
    return {broadcast(name, {"x", args.x}, {"bias", args.bias})};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    activated_pointwise<Formula>(host, parse_activation(name, args.act), y, args.x, args.bias);
  }

  template <class Act>
  struct Formula {
    Act act;

    template <class A>
    FUSECONV_INLINE A operator()(A x, A bias) const {
      return act(x + bias);
    }
  };
};

}  // namespace fuseconv
