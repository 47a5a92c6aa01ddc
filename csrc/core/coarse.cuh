// Defines the compute type Coarse, for floats on CUDA whose result will be rounded to 16 bits. Its functions are only
// as accurate as this rounding requires, so that they are cheap enough not to limit the bandwidth of 16-bit tensors.
//
// In the time in which an H200 reads and writes 4 bytes per element, it executes 27 instructions. The functions of
// core/activation.h, which are accurate to the rounding of f32, take up to 60. The functions in this file have an error
// of about one rounding of f16.
#pragma once

#include "arch/math.cuh"
#include "core/cuda.cuh"

namespace fuseconv::cuda {

struct Coarse {
  float value;

  Coarse() = default;
  __device__ __forceinline__ explicit Coarse(float v) : value(v) {}
  __device__ __forceinline__ explicit Coarse(double v) : value(static_cast<float>(v)) {}
  __device__ __forceinline__ explicit Coarse(int v) : value(static_cast<float>(v)) {}

  friend __device__ __forceinline__ Coarse operator+(Coarse a, Coarse b) { return Coarse(a.value + b.value); }
  friend __device__ __forceinline__ Coarse operator-(Coarse a, Coarse b) { return Coarse(a.value - b.value); }
  friend __device__ __forceinline__ Coarse operator*(Coarse a, Coarse b) { return Coarse(a.value * b.value); }
  friend __device__ __forceinline__ Coarse operator-(Coarse a) { return Coarse(-a.value); }
  friend __device__ __forceinline__ bool operator<(Coarse a, int b) { return a.value < static_cast<float>(b); }
  friend __device__ __forceinline__ bool operator<(Coarse a, Coarse b) { return a.value < b.value; }
  friend __device__ __forceinline__ bool operator>(Coarse a, Coarse b) { return a.value > b.value; }
  friend __device__ __forceinline__ bool operator<=(Coarse a, Coarse b) { return a.value <= b.value; }
};

__device__ __forceinline__ Coarse exp_of_negative(Coarse x) { return Coarse(arch::exp2_approx(x.value * 1.44269504f)); }

__device__ __forceinline__ Coarse quotient(Coarse p, Coarse q) {
  return Coarse(p.value * arch::reciprocal_approx(q.value));
}

// 1 / (1 + 2^x), or 0 if the power overflows.
__device__ __forceinline__ float logistic_of_log2(float x) {
  return arch::reciprocal_approx(1.0f + arch::exp2_approx(x));
}

__device__ __forceinline__ Coarse logistic(Coarse x) { return Coarse(logistic_of_log2(x.value * -1.44269504f)); }

// The cumulative distribution function of the standard normal distribution as 1 / (1 + 2^(x p(x^2))). p is fitted for
// |x| up to 5. The fit minimizes the largest error of x times the function, relative to the result and to the smallest
// f16 number. This error is at most 0.17 times 2^-12; rounding the argument in eager PyTorch causes an error of 15
// times 2^-12. Beyond |x| = 5, p keeps falling to minus infinity.
__device__ __forceinline__ Coarse normal_cdf(Coarse x) {
  const float s = x.value * x.value;
  float p = -2.8038682e-09f;
  p = p * s + 2.4236232e-07f;
  p = p * s - 8.2736296e-06f;
  p = p * s + 1.2598510e-04f;
  p = p * s + 2.6470539e-04f;
  p = p * s - 0.10520772f;
  p = p * s - 2.3019662f;
  return Coarse(logistic_of_log2(x.value * p));
}

// (1 - e) / (1 + e) with e = exp(-2 |x|). Near 0, where the difference cancels, a polynomial is used instead.
__device__ __forceinline__ Coarse hyperbolic_tangent(Coarse x) {
  const float z = fabsf(x.value);
  const float e = arch::exp2_approx(z * -2.88539008f);
  const float large = (1.0f - e) * arch::reciprocal_approx(1.0f + e);
  const float s = x.value * x.value;
  const float small = x.value + x.value * (s * (-0.33333f + s * (0.13312f - s * 0.04858f)));
  return Coarse(z < 0.4f ? small : copysignf(large, x.value));
}

// The type in which formulas are computed: f64 for f64, f32 for f32, Coarse for f16 and bf16.
template <class T>
using FormulaType = std::conditional_t<std::is_same_v<T, Compute<T>>, T, Coarse>;

__device__ __forceinline__ float value_of(Coarse x) { return x.value; }
template <class A>
__device__ __forceinline__ A value_of(A x) {
  return x;
}

}  // namespace fuseconv::cuda
