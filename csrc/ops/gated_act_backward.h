// d[..., n] = grad[..., n] z[..., H + n] act'(z[..., n]);  d[..., H + n] = grad[..., n] act(z[..., n]), n < H
//
// d is the gradient of gated_act with respect to z. One tensor contains both halves, because each of the two matrix
// products in a gated layer's backward pass reads both.
#pragma once

#include "kernels/pointwise.h"
#include "ops/gated_act.h"

namespace fuseconv {

struct GatedActBackward {
  static constexpr const char* name = "gated_act_backward";
  static constexpr const char* schema = "gated_act_backward(Tensor grad, Tensor z, str act) -> Tensor";

  struct Args {
    In grad, z;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"grad", args.grad}, {"z", args.z}});
    GatedAct::check_halves(name, args.z);
    check_same_sizes(name, {"half of z", Halves(args.z).gate}, {"grad", args.grad});
    parse_activation(name, args.act);
    return {contiguous_like(args.z)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out d) {
    const Halves from(args.z);
    const Halves to(d);
    const Activation activation = parse_activation(name, args.act);
    activated_pointwise<Gate>(host, activation, to.gate, args.grad, from.gate, from.up);
    activated_pointwise<Up>(host, activation, to.up, args.grad, from.gate);
  }

  template <class Act>
  struct Gate {
    Act act;

    template <class A>
    FUSECONV_INLINE A operator()(A grad, A gate, A up) const {
      return activation_gradient(act, grad * up, gate);
    }
  };
  template <class Act>
  struct Up {
    Act act;

    template <class A>
    FUSECONV_INLINE A operator()(A grad, A gate) const {
      return grad * act(gate);
    }
  };
};

}  // namespace fuseconv
