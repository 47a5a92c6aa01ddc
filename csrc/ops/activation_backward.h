// d[r, c] = grad[r, c] * act'(z), from y = act(z) alone;  s[c] = sum over rows r of d[r, c]
//
// This is the part of a layer's backward pass that precedes its two matrix products. One pass computes the gradients
// with respect to the product and to the bias. The sum adds the values of d before they are rounded. Activations whose
// derivative cannot be computed from y alone are not supported.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/column_sum.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct ActivationBackward {
  static constexpr const char* name = "activation_backward";
  static constexpr const char* schema =
      "activation_backward(Tensor grad, Tensor y, str act, bool sum_rows) -> (Tensor, Tensor)";

  struct Args {
    In grad, y;
    std::string_view act;
    bool sum_rows;
  };

  static std::array<Spec, 2> outputs(const Args& args) {
    common_dtype(name, {{"grad", args.grad}, {"y", args.y}});
    check_has_dims(name, {"grad", args.grad});
    check_same_sizes(name, {"grad", args.grad}, {"y", args.y});
    const Activation activation = parse_activation(name, args.act);
    check(activation == Activation::relu || activation == Activation::sigmoid || activation == Activation::tanh ||
              activation == Activation::relu6,
          "fuseconv::", name, ": the derivative of '", args.act,
          "' does not follow from y; use one of relu, sigmoid, tanh, relu6");
    const int64_t columns = args.sum_rows ? args.grad.sizes[args.grad.rank - 1] : 0;
    const bool alike = std::equal(args.grad.strides, args.grad.strides + args.grad.rank, args.y.strides);
    const Spec d =
        alike && !args.sum_rows ? broadcast(name, {"grad", args.grad}, {"y", args.y}) : contiguous_like(args.grad);
    return {d, contiguous(args.grad.dtype, 1, &columns)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out d, Out sum) {
    dispatch(args.act, [&]<class Formula>(Formula formula) {
      if (args.sum_rows) {
        pointwise_and_column_sum(host, formula, d, sum, args.grad, args.y);
      } else {
        pointwise(host, formula, d, args.grad, args.y);
      }
    });
  }

  // The functors compute the gradient with respect to z from (grad, y). ReluBackward passes the gradient on where y is
  // NaN, as PyTorch does.
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
  struct Relu6Backward {
    template <class A>
    FUSECONV_INLINE A operator()(A grad, A y) const {
      return y > A(0) && y < A(6) ? grad : A(0);
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
    if (activation == Activation::relu6) {
      return function(Relu6Backward{});
    }
    return function(TanhBackward{});
  }
};

}  // namespace fuseconv
