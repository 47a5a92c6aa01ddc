// Activations as functors for host and device. A functor computes f(x) in the type of x, f32 or f64.
//
// The result for NaN is NaN. The result for an infinity is what the textbook formula gives in IEEE arithmetic:
// gelu(-inf) and silu(-inf) are -inf * 0, which is NaN, as in PyTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/elementary.h"

namespace fuseconv {

// The name and functor of every activation. gelu is the erf variant, gelu_tanh the tanh variant. A new activation needs
// an entry in this list, a functor and a gradient below, and an entry in fuseconv/ops/activation.py. If the functor has
// a data member, the activation takes a parameter, which is written in parentheses after the name: 'leaky_relu(0.1)'.
#define FUSECONV_ACTIVATIONS(DO) \
  DO(none, Identity)             \
  DO(relu, Relu)                 \
  DO(gelu, Gelu)                 \
  DO(gelu_tanh, GeluTanh)        \
  DO(silu, Silu)                 \
  DO(sigmoid, Sigmoid)           \
  DO(tanh, Tanh)                 \
  DO(hard_swish, HardSwish)      \
  DO(hard_sigmoid, HardSigmoid)  \
  DO(relu6, Relu6)               \
  DO(relu_squared, ReluSquared)  \
  DO(leaky_relu, LeakyRelu)      \
  DO(elu, Elu)                   \
  DO(mish, Mish)

struct Activation {
#define FUSECONV_ENUMERATOR(name, Functor) name,
  enum Name : int32_t { FUSECONV_ACTIVATIONS(FUSECONV_ENUMERATOR) };
#undef FUSECONV_ENUMERATOR

  Name name;
  double parameter;  // the functor's parameter, if it takes one

  FUSECONV_INLINE constexpr Activation(Name n = none, double p = 0) : name(n), parameter(p) {}
  FUSECONV_INLINE constexpr operator Name() const { return name; }
};

#define FUSECONV_NAME(name, Functor) std::string_view(#name),
inline constexpr std::array kActivationNames = {FUSECONV_ACTIVATIONS(FUSECONV_NAME)};
#undef FUSECONV_NAME

// Parses the value of an op's `act` argument: the name of an activation, or a name with a parameter. Throws
// std::runtime_error if no activation has that name (the message lists all names), if the activation takes no
// parameter, or if the parameter is not a finite number.
Activation parse_activation(const char* op, std::string_view text);

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

// Clamps x to [low, high].
template <class A>
FUSECONV_INLINE A clip(A x, A low, A high) {
  return x < low ? low : x > high ? high : x;
}

struct HardSwish {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x * clip(x * A(0.16666666666666666) + A(0.5), A(0), A(1));
  }
};
struct HardSigmoid {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return clip(x * A(0.16666666666666666) + A(0.5), A(0), A(1));
  }
};
struct Relu6 {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return clip(x, A(0), A(6));
  }
};

// Source: So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 2021.
struct ReluSquared {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return relu(x) * relu(x);
  }
};

struct LeakyRelu {
  double slope = 0.01;

  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x < 0 ? x * A(slope) : x;
  }
};
// alpha (exp(x) - 1) for negative x. The difference is computed as tanh(x / 2) (exp(x) + 1), which does not suffer
// cancellation.
struct Elu {
  double alpha = 1.0;

  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    const A negative = x < 0 ? x : A(0);
    const A difference = hyperbolic_tangent(negative * A(0.5)) * (exp_of_negative(negative) + A(1));
    return x < 0 ? A(alpha) * difference : x;
  }
};

// tanh(log(1 + exp(x))) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) with e = exp(x), computed from the exponential of -|x|.
template <class A>
FUSECONV_INLINE A tanh_of_softplus(A x) {
  const A e = exp_of_negative(x < 0 ? x : -x);
  const A p = x < 0 ? e * (e + A(2)) : e * A(2) + A(1);
  return quotient(p, p + (x < 0 ? A(2) : A(2) * e * e));
}
struct Mish {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x * tanh_of_softplus(x);
  }
};

template <class Functor>
inline constexpr bool kHasParameter = !std::is_empty_v<Functor>;

// Returns the functor of an activation, with its parameter.
template <class Functor>
FUSECONV_INLINE Functor functor_of([[maybe_unused]] Activation activation) {
  if constexpr (kHasParameter<Functor>) {
    return {activation.parameter};
  } else {
    return {};
  }
}

// The name of an activation as a compile-time constant. Constant<name>::functor is the type of the activation's
// functor. with_constant calls `function` with a Constant, on the host or device, for loops that are compiled once per
// activation.
template <Activation::Name kName>
struct Constant;
#define FUSECONV_CONSTANT(name, Functor)                        \
  template <>                                                   \
  struct Constant<Activation::name> {                           \
    static constexpr Activation::Name value = Activation::name; \
    using functor = Functor;                                    \
  };
FUSECONV_ACTIVATIONS(FUSECONV_CONSTANT)
#undef FUSECONV_CONSTANT

#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // the function may be host-only or device-only
#endif
template <class Function>
FUSECONV_INLINE auto with_constant(Activation::Name activation, Function function) {
  switch (activation) {
#define FUSECONV_CASE(name, Functor) \
  case Activation::name:             \
    return function(Constant<Activation::name>());
    FUSECONV_ACTIVATIONS(FUSECONV_CASE)
#undef FUSECONV_CASE
  }
  __builtin_unreachable();  // there are no other values
}

// Calls `function` with the functor of an activation.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Function>
FUSECONV_INLINE auto dispatch(Activation activation, Function function) {
  switch (activation) {
#define FUSECONV_CASE(name, Functor) \
  case Activation::name:             \
    return function(functor_of<Functor>(activation));
    FUSECONV_ACTIVATIONS(FUSECONV_CASE)
#undef FUSECONV_CASE
  }
  __builtin_unreachable();  // there are no other values
}

// An activation that is known only at run time.
struct AnyActivation {
  Activation activation;

  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return dispatch(activation, [&](auto act) { return act(x); });
  }
};

// Each overload returns the gradient with respect to x, where `grad` is the gradient with respect to act(x). relu
// passes the gradient on where x is NaN, as PyTorch does.
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
FUSECONV_INLINE A activation_gradient(HardSwish, A grad, A x) {
  return x <= A(-3) ? A(0) : x < A(3) ? grad * (x * A(0.33333333333333333) + A(0.5)) : grad;
}
template <class A>
FUSECONV_INLINE A activation_gradient(HardSigmoid, A grad, A x) {
  return x > A(-3) && x < A(3) ? grad * A(0.16666666666666666) : A(0);
}
template <class A>
FUSECONV_INLINE A activation_gradient(Relu6, A grad, A x) {
  return x > A(0) && x < A(6) ? grad : A(0);
}
template <class A>
FUSECONV_INLINE A activation_gradient(ReluSquared, A grad, A x) {
  return grad * (A(2) * relu(x));
}
template <class A>
FUSECONV_INLINE A activation_gradient(LeakyRelu act, A grad, A x) {
  return x > A(0) ? grad : grad * A(act.slope);
}
template <class A>
FUSECONV_INLINE A activation_gradient(Elu act, A grad, A x) {
  return x <= A(0) ? grad * A(act.alpha) * exp_of_negative(x <= A(0) ? x : A(0)) : grad;
}
template <class A>
FUSECONV_INLINE A activation_gradient(Mish, A grad, A x) {
  const A t = tanh_of_softplus(x);
  return grad * (t + x * logistic(x) * (A(1) - t * t));
}
template <class A>
FUSECONV_INLINE A activation_gradient(AnyActivation any, A grad, A x) {
  return dispatch(any.activation, [&](auto act) { return activation_gradient(act, grad, x); });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
