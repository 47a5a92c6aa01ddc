// d[..., n] = grad[..., n] z[..., H + n] act'(z[..., n]);  d[..., H + n] = grad[..., n] act(z[..., n]), n < H
//
// The gradient of gated_act, both halves in the memory that the two products of a gated layer's backward read.
#pragma once

#include "ops/gated_act.h"

namespace fuseconv {

struct GatedActBackward {
  static constexpr const char* name = "gated_act_backward";
  static constexpr const char* schema = "gated_act_backward(Tensor grad, Tensor z, str act) -> Tensor";

  static std::array<Spec, 1> outputs(In grad, In z, std::string_view act) {
    common_dtype(name, {{"grad", grad}, {"z", z}});
    GatedAct::check_halves(name, z);
    check_same_sizes(name, {"half of z", Halves(z).gate}, {"grad", grad});
    parse_activation(name, act);
    return {contiguous_like(z)};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In grad, In z, std::string_view act, Out d);
  static void cuda(CudaHost& host, In grad, In z, std::string_view act, Out d);

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
