// Activations in the epilogue of a GEMM: y = act(x), where x = accumulator + bias, computed in f32.
//
// Activations based on the sigmoid have the form h + h tanh(u) or 0.5 + 0.5 tanh(u) with h = x / 2. The factor 1/2 is
// folded into the FFMA that adds the bias: the argument of `apply` is h = kScale * x.
#pragma once

#include "arch/math.cuh"
#include "gemm/problem.h"

namespace fuseconv::linear {

// tanh(argument(x)) = erf(x / sqrt(2)) within 2.5e-5 / |x|, as a function of h = x / 2. The clamp keeps the polynomial
// increasing, so that large arguments saturate.
__device__ __forceinline__ float erf_argument(float h) {
  const float s = fminf(h * h, 9.0f);
  return h * (1.595013172f + s * (0.2960546168f - 0.01125467648f * s));
}

// sqrt(2/pi) (x + 0.044715 x^3) as a function of h = x / 2
__device__ __forceinline__ float tanh_gelu_argument(float h) {
  return h * (1.5957691216057308f + 0.2854192652f * (h * h));
}

// x sigmoid(2u)
__device__ __forceinline__ float gate(float h, float u) { return h + h * arch::tanh_approx(u); }

// Activations without a fast variant below are computed by core/activation.h, in f32.
template <Activation::Name kActivation>
struct Epilogue : Constant<kActivation>::functor {
  static constexpr float kScale = 1.0f;
  __device__ __forceinline__ float apply(float x) const { return (*this)(x); }
};

template <>
struct Epilogue<Activation::relu> {
  static constexpr float kScale = 1.0f;
  static __device__ __forceinline__ float apply(float x) { return arch::relu(x); }
};

template <>
struct Epilogue<Activation::tanh> {
  static constexpr float kScale = 1.0f;
  static __device__ __forceinline__ float apply(float x) { return arch::tanh_approx(x); }
};

template <>
struct Epilogue<Activation::sigmoid> {
  static constexpr float kScale = 0.5f;
  static __device__ __forceinline__ float apply(float h) { return 0.5f + 0.5f * arch::tanh_approx(h); }
};

template <>
struct Epilogue<Activation::gelu> {
  static constexpr float kScale = 0.5f;
  static __device__ __forceinline__ float apply(float h) { return gate(h, erf_argument(h)); }
};

template <>
struct Epilogue<Activation::gelu_tanh> {
  static constexpr float kScale = 0.5f;
  static __device__ __forceinline__ float apply(float h) { return gate(h, tanh_gelu_argument(h)); }
};

template <>
struct Epilogue<Activation::silu> {
  static constexpr float kScale = 0.5f;
  static __device__ __forceinline__ float apply(float h) { return gate(h, h); }
};

// Returns the epilogue functor of an activation, with the activation's parameter.
template <Activation::Name kActivation>
__device__ __forceinline__ Epilogue<kActivation> epilogue_of([[maybe_unused]] Activation activation) {
  if constexpr (std::is_empty_v<Epilogue<kActivation>>) {
    return {};
  } else {
    return {functor_of<typename Constant<kActivation>::functor>(activation)};
  }
}

}  // namespace fuseconv::linear
