// Activations as functors, for host and device: f(x) in the type of x, f32 or f64.
//
// In f32 they have no branch, so that the compiler vectorises any loop around them, and what they take the exponential
// of is not positive, so that it cannot overflow. NaN gives NaN, and infinities give what the textbook formula gives in
// IEEE arithmetic: gelu and silu of -inf are -inf * 0, a NaN, in PyTorch too.
//
// The polynomials were fitted for this file (least squares reweighted towards the least maximum of the relative error);
// the bound of the fit stands beside each.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/isa.h"

namespace fuseconv {

// gelu is the erf form, gelu_tanh the tanh form.
enum class Activation : int32_t { none, relu, gelu, gelu_tanh, silu, sigmoid, tanh };
inline constexpr std::array<std::string_view, 7> kActivationNames = {"none", "relu",    "gelu", "gelu_tanh",
                                                                     "silu", "sigmoid", "tanh"};

// Reads an activation's name in a schema. Throws, listing the names, when there is none such.
Activation parse_activation(const char* op, std::string_view name);

inline namespace FUSECONV_ISA {

// c[0] + c[1] x + c[2] x^2 + ...
FUSECONV_INLINE float polynomial(float, float c0) { return c0; }
template <class... Coefficients>
FUSECONV_INLINE float polynomial(float x, float c0, Coefficients... c) {
  return c0 + x * polynomial(x, c...);
}

// p / q for q from 1 to 2^126. On CUDA within two units in the last place rather than a half: the exact division would
// be a third of a gelu's instructions, and its last bit is lost in the sum or product that it goes into.
FUSECONV_INLINE float quotient(float p, float q) {
#if defined(__CUDA_ARCH__)
  return __fdividef(p, q);
#else
  return p / q;
#endif
}
FUSECONV_INLINE double quotient(double p, double q) { return p / q; }

// exp(x) for x <= 0; 0 below the logarithm of the smallest normal number.
FUSECONV_INLINE float exp_of_negative(float x) {
#if defined(__CUDA_ARCH__)
  return expf(x);
#else
  // x = n ln2 + r with |r| <= ln2 / 2; adding 1.5 * 2^23 rounds to the nearest integer, left in the low bits.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float e_r = polynomial(r, 1.0f, 1.0f, 0.4999999341242057f, 0.16666520107135607f, 0.04166839422721736f,
                               0.008368780474662057f, 0.0013814466273848402f);  // 3.1e-9
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;  // 2^n
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -87.3f ? 0.0f : e_r * scale;
#endif
}
FUSECONV_INLINE double exp_of_negative(double x) { return exp(x); }

// 1 / (1 + exp(-x)), to full relative precision on both sides of 0.
template <class A>
FUSECONV_INLINE A logistic(A x) {
  const A e = exp_of_negative(x < 0 ? x : -x);
  return quotient(x < 0 ? e : A(1), A(1) + e);
}

// The normal distribution function, (1 + erf(x / sqrt 2)) / 2.
FUSECONV_INLINE float normal_cdf(float x) {
  const float s = x * x;
  const float p = polynomial(s, 0.3989422766591827f, 0.032642019928912865f, 0.0046097818174741225f,
                             0.00015729496283108934f, 6.354997639234911e-06f, 2.4268932585092752e-08f);
  const float q = polynomial(s, 1.0f, 0.24848792392175514f, 0.02797006919462479f, 0.0018195300459699464f,
                             7.035621399617428e-05f, 1.2417160139649857e-06f);
  const float inside = 0.5f + x * quotient(p, q);  // 9.4e-9 of the distance to 0.5, for |x| < 5.3
  return x < -5.3f ? 0.0f : x > 5.3f ? 1.0f : inside;
}
FUSECONV_INLINE double normal_cdf(double x) { return 0.5 * (1.0 + erf(x * 0.70710678118654752440)); }

FUSECONV_INLINE float hyperbolic_tangent(float x) {
  const float z = x < 0 ? -x : x;
  const float e = exp_of_negative(-2.0f * z);
  const float large = (1.0f - e) / (1.0f + e);
  const float s = x * x;
  // Near 0 the quotient loses digits to cancellation.
  const float small = x + x * (s * polynomial(s, -0.333332819411802f, 0.13331442179752703f, -0.05373971376214003f,
                                              0.020639083413902325f, -0.005704983122211788f));  // 4.4e-9
  return z < 0.625f ? small : (x < 0 ? -large : large);
}
FUSECONV_INLINE double hyperbolic_tangent(double x) { return tanh(x); }

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
