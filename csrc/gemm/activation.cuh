// Activations in the epilogue of a GEMM: y = act(x), x = accumulator + bias, computed in f32.
//
// The functions of the sigmoid family are all h + h tanh(u) or 0.5 + 0.5 tanh(u) of h = x / 2, so that the half is
// folded into the one FFMA that adds the bias: `apply` takes h = kScale * x.
#pragma once

#include "arch/math.cuh"
#include "gemm/problem.h"

namespace fuseconv::linear {

// tanh(argument(x)) = erf(x / sqrt(2)) within 2.5e-5 / |x|, as a function of h = x / 2; the clamp keeps the polynomial
// growing, so that far arguments saturate.
__device__ __forceinline__ float erf_argument(float h) {
  const float s = fminf(h * h, 9.0f);
  return h * (1.595013172f + s * (0.2960546168f - 0.01125467648f * s));
}

// sqrt(2/pi) (x + 0.044715 x^3) of h = x / 2
__device__ __forceinline__ float tanh_gelu_argument(float h) {
  return h * (1.5957691216057308f + 0.2854192652f * (h * h));
}

template <Activation kActivation>
struct Epilogue {
  static constexpr bool kHalves =
      kActivation != Activation::none && kActivation != Activation::relu && kActivation != Activation::tanh;
  static constexpr float kScale = kHalves ? 0.5f : 1.0f;

  static __device__ __forceinline__ float apply(float h) {
    if constexpr (kActivation == Activation::none) {
      return h;
    } else if constexpr (kActivation == Activation::relu) {
      return arch::relu(h);
    } else if constexpr (kActivation == Activation::gelu) {
      return gate(h, erf_argument(h));
    } else if constexpr (kActivation == Activation::gelu_tanh) {
      return gate(h, tanh_gelu_argument(h));
    } else if constexpr (kActivation == Activation::silu) {
      return gate(h, h);
    } else if constexpr (kActivation == Activation::sigmoid) {
      return 0.5f + 0.5f * arch::tanh_approx(h);
    } else {
      return arch::tanh_approx(h);
    }
  }

 private:
  // x sigmoid(2u)
  static __device__ __forceinline__ float gate(float h, float u) { return h + h * arch::tanh_approx(u); }
};

}  // namespace fuseconv::linear
