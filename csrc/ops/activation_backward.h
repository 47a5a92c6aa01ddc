// d[r, c] = grad[r, c] * act'(z), from y = act(z) alone;  s[c] = sum over rows r of d[r, c]
//
// What the backward of a layer needs before its two products: the gradient of the product and of the bias, in one pass.
// The sum is that of d before d is rounded. Of an activation that y does not determine there is no such op.
#pragma once

#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct ActivationBackward {
  static constexpr const char* name = "activation_backward";
  static constexpr const char* schema =
      "activation_backward(Tensor grad, Tensor y, str act, bool sum_rows) -> (Tensor, Tensor)";

  static std::array<Spec, 2> outputs(In grad, In y, std::string_view act, bool sum_rows) {
    common_dtype(name, {{"grad", grad}, {"y", y}});
    check_has_dims(name, {"grad", grad});
    check_same_sizes(name, {"grad", grad}, {"y", y});
    const Activation activation = parse_activation(name, act);
    check(activation == Activation::relu || activation == Activation::sigmoid || activation == Activation::tanh,
          "fuseconv::", name, ": the derivative of '", act, "' does not follow from y; use one of relu, sigmoid, tanh");
    const int64_t columns = sum_rows ? grad.sizes[grad.rank - 1] : 0;
    return {contiguous_like(grad), contiguous(grad.dtype, 1, &columns)};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In grad, In y, std::string_view act, bool sum_rows, Out d, Out sum);
  static void cuda(CudaHost& host, In grad, In y, std::string_view act, bool sum_rows, Out d, Out sum);

  // Functors of (grad, y). A NaN in y keeps the gradient, as PyTorch does.
  struct ReluBackward {
    template <class A>
    FUSECONV_INLINE A operator()(A grad, A y) const {
      return y <= A(0) ? A(0) : grad;
    }
  };
  struct SigmoidBackward {
    template <class A>
    FUSECONV_INLINE A operator()(A grad, A y) const {
      return grad * ((A(1) - y) * y);
    }
  };
  struct TanhBackward {
    template <class A>
    FUSECONV_INLINE A operator()(A grad, A y) const {
      return grad * (A(1) - y * y);
    }
  };

  template <class Function>
  static void dispatch(std::string_view act, Function function) {
    const Activation activation = parse_activation(name, act);
    if (activation == Activation::relu) {
      return function(ReluBackward{});
    }
    if (activation == Activation::sigmoid) {
      return function(SigmoidBackward{});
    }
    return function(TanhBackward{});
  }
};

}  // namespace fuseconv
