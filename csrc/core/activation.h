// Activations as functors, for host and device: f(x) in the type of x, f32 or f64.
//
// NaN gives NaN, and infinities give what the textbook formula gives in IEEE arithmetic: gelu and silu of -inf are
// -inf * 0, a NaN, in PyTorch too.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/elementary.h"

namespace fuseconv {

// gelu is the erf form, gelu_tanh the tanh form.
enum class Activation : int32_t { none, relu, gelu, gelu_tanh, silu, sigmoid, tanh };
inline constexpr std::array<std::string_view, 7> kActivationNames = {"none", "relu",    "gelu", "gelu_tanh",
                                                                     "silu", "sigmoid", "tanh"};

// Reads an activation's name in a schema. Throws, listing the names, when there is none such.
Activation parse_activation(const char* op, std::string_view name);

inline namespace FUSECONV_ISA {

template <class A>
FUSECONV_INLINE A relu(A x) {
  return x < 0 ? A(0) : x;
}

struct Identity {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x;
  }
};
struct Relu {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return relu(x);
  }
};
struct Gelu {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x * normal_cdf(x);
  }
};
// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x * logistic(x * (A(1.5957691216057308) + A(0.07135481627260025) * x * x));
  }
};
struct Silu {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x * logistic(x);
  }
};
struct Sigmoid {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return logistic(x);
  }
};
struct Tanh {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return hyperbolic_tangent(x);
  }
};

// Calls `function` with the functor of an activation, on the host or on a device. For loops that are compiled for each.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // the function may be of one side only
#endif
template <class Function>
FUSECONV_INLINE auto dispatch(Activation activation, Function function) {
  switch (activation) {
    case Activation::relu:
      return function(Relu{});
    case Activation::gelu:
      return function(Gelu{});
    case Activation::gelu_tanh:
      return function(GeluTanh{});
    case Activation::silu:
      return function(Silu{});
    case Activation::sigmoid:
      return function(Sigmoid{});
    case Activation::tanh:
      return function(Tanh{});
    case Activation::none:
      break;
  }
  return function(Identity{});
}

// The one that is known at run time only.
struct AnyActivation {
  Activation activation;

  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return dispatch(activation, [&](auto act) { return act(x); });
  }
};

// The gradient before an activation from the one after it, at x. A NaN does not stop relu's, as in PyTorch.
template <class A>
FUSECONV_INLINE A activation_gradient(Identity, A grad, A) {
  return grad;
}
template <class A>
FUSECONV_INLINE A activation_gradient(Relu, A grad, A x) {
  return x <= A(0) ? A(0) : grad;
}
template <class A>
FUSECONV_INLINE A activation_gradient(Gelu, A grad, A x) {
  return grad * (normal_cdf(x) + x * A(0.39894228040143268) * exp_of_negative(A(-0.5) * x * x));
}
template <class A>
FUSECONV_INLINE A activation_gradient(GeluTanh, A grad, A x) {
  const A s = logistic(x * (A(1.5957691216057308) + A(0.07135481627260025) * x * x));
  return grad * (s + x * (s * (A(1) - s)) * (A(1.5957691216057308) + A(0.21406444881780075) * x * x));
}
template <class A>
FUSECONV_INLINE A activation_gradient(Silu, A grad, A x) {
  const A s = logistic(x);
  return grad * (s + x * (s * (A(1) - s)));
}
template <class A>
FUSECONV_INLINE A activation_gradient(Sigmoid, A grad, A x) {
  const A s = logistic(x);
  return grad * (s * (A(1) - s));
}
template <class A>
FUSECONV_INLINE A activation_gradient(Tanh, A grad, A x) {
  const A t = hyperbolic_tangent(x);
  return grad * (A(1) - t * t);
}
template <class A>
FUSECONV_INLINE A activation_gradient(AnyActivation any, A grad, A x) {
  return dispatch(any.activation, [&](auto act) { return activation_gradient(act, grad, x); });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
