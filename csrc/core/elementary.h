// The elementary functions from which the activations are computed, for host and device, in f32 and f64.
//
// They contain no branches, so that the compiler can vectorize any loop around them. The arguments of exponentials are
// never positive, so that exponentials cannot overflow. The result for NaN is NaN.
//
// The polynomials and rational functions were fitted for this file (least squares, reweighted towards the minimax
// error). A comment next to each fit gives its error bound, relative to the function unless stated otherwise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include "arch/math.cuh"
#endif
#include "core/isa.h"

// Declares coefficients in f64. On CUDA, an instruction that uses a literal needs two extra moves, but it can read a
// coefficient directly from constant memory.
#define FUSECONV_ON_HOST(name, ...) [[maybe_unused]] static constexpr double name##_on_host[] = {__VA_ARGS__};
#if defined(__CUDACC__)
#define FUSECONV_COEFFICIENTS(name, ...) \
  FUSECONV_ON_HOST(name, __VA_ARGS__)    \
  [[maybe_unused]] static __constant__ double name##_on_device[] = {__VA_ARGS__};
#else
#define FUSECONV_COEFFICIENTS(name, ...) FUSECONV_ON_HOST(name, __VA_ARGS__)
#endif
#if defined(__CUDA_ARCH__)
#define FUSECONV_SERIES(name, x) polynomial(x, name##_on_device)
#else
#define FUSECONV_SERIES(name, x) polynomial(x, name##_on_host)
#endif

namespace fuseconv {
inline namespace FUSECONV_ISA {

// c[0] + c[1] x + c[2] x^2 + ...
FUSECONV_INLINE float polynomial(float, float c0) { return c0; }
template <class... Coefficients>
FUSECONV_INLINE float polynomial(float x, float c0, Coefficients... c) {
  return c0 + x * polynomial(x, c...);
}
template <int First = 0, int N>
FUSECONV_INLINE double polynomial(double x, const double (&c)[N]) {
  if constexpr (First == N - 1) {
    return c[First];
  } else {
    return c[First] + x * polynomial<First + 1>(x, c);
  }
}

// p / q for q from 1 to 2^126. On CUDA the error is up to two units in the last place instead of half a unit. A
// correctly rounded division would take a third of the instructions of gelu, and the sum or product that follows loses
// the last bit anyway.
FUSECONV_INLINE float quotient(float p, float q) {
#if defined(__CUDA_ARCH__)
  return p * arch::reciprocal_approx(q);
#else
  return p / q;
#endif
}
FUSECONV_INLINE double quotient(double p, double q) {
#if defined(__CUDA_ARCH__)
  double reciprocal = arch::reciprocal_approx(q);
  const double error = fma(-q, reciprocal, 1.0);
  reciprocal = fma(reciprocal, fma(error, error, error), reciprocal);
  const double y = p * reciprocal;
  return fma(fma(-q, y, p), reciprocal, y);
#else
  return p / q;
#endif
}

// exp(x) for x <= 0; returns 0 below the logarithm of the smallest normal number.
//
// x = n ln2 + r with |r| <= ln2 / 2. Adding 1.5 * 2^23, or 1.5 * 2^52, rounds to the nearest integer, which is then in
// the low bits.
FUSECONV_INLINE float exp_of_negative(float x) {
#if defined(__CUDA_ARCH__)
  return expf(x);
#else
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float e_r = polynomial(r, 1.0f, 1.0f, 0.4999999341242057f, 0.16666520107135607f, 0.04166839422721736f,
                               0.008368780474662057f, 0.0013814466273848402f);  // error 3.1e-9
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;  // 2^n
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -87.3f ? 0.0f : e_r * scale;
#endif
}

// exp(r) with an error of 3.7e-18.
FUSECONV_COEFFICIENTS(kExponential, 1.0, 1.0, 0.50000000000000106863, 0.16666666666666411353, 0.041666666666529580847,
                      0.0083333333334949860131, 0.0013888888943797970721, 0.00019841269505888781058,
                      0.000024801492911001082858, 2.7557586611588133623e-6, 2.7630319808411178335e-7,
                      2.5000102347925588269e-8)

FUSECONV_INLINE double exp_of_negative(double x) {
  // 1 / ln2 and the first part of ln2 have 21 significant bits. These fit in an instruction, and the product of n and
  // the first part is exact.
  const double shifted = x * 0x1.71547p+0 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (x - n * 0x1.62e42p-1) - n * 4.7493250390316723212e-7;
  const double e_r = FUSECONV_SERIES(kExponential, r);
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + 0x3ff0000000000000u;  // 2^n
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -708.3 ? 0.0 : e_r * scale;
}

// 1 / (1 + exp(-x)), to full relative precision on both sides of 0.
template <class A>
FUSECONV_INLINE A logistic(A x) {
  const A e = exp_of_negative(x < 0 ? x : -x);
  return quotient(x < 0 ? e : A(1), A(1) + e);
}

// The cumulative distribution function of the standard normal distribution, (1 + erf(x / sqrt 2)) / 2.
FUSECONV_INLINE float normal_cdf(float x) {
  const float s = x * x;
  const float p = polynomial(s, 0.3989422766591827f, 0.032642019928912865f, 0.0046097818174741225f,
                             0.00015729496283108934f, 6.354997639234911e-06f, 2.4268932585092752e-08f);
  const float q = polynomial(s, 1.0f, 0.24848792392175514f, 0.02797006919462479f, 0.0018195300459699464f,
                             7.035621399617428e-05f, 1.2417160139649857e-06f);
  const float inside = 0.5f + x * quotient(p, q);  // error 9.4e-9 relative to the distance to 0.5, for |x| < 5.3
  return x < -5.3f ? 0.0f : x > 5.3f ? 1.0f : inside;
}

FUSECONV_COEFFICIENTS(kNormalNumerator, 0.39894228040143257511, 0.038809085072421934522, 0.0058349963490289931472,
                      0.00030300381063064256169, 0.000018846571608812967569, 6.2525800155731063269e-7,
                      2.1456022103294666212e-8, 4.6518750959316227781e-10, 9.3075836478456794524e-12,
                      1.1841745827604564941e-13, 1.1609485316806937144e-15, 3.9229688398372360609e-18,
                      1.3975388081791297403e-21)
FUSECONV_COEFFICIENTS(kNormalDenominator, 1.0, 0.26394661662175548001, 0.033617269601154720843,
                      0.0027399212465170366954, 0.00015966670513587209081, 7.0325734490510048618e-6,
                      2.409171241933958551e-7, 6.4891275417611979348e-9, 1.3666985940183378858e-10,
                      2.1896786720859933425e-12, 2.4923786405503643356e-14, 1.6442454504711860466e-16,
                      2.2163324719627384582e-19)

FUSECONV_INLINE double normal_cdf(double x) {
  const double s = x * x;
  const double p = FUSECONV_SERIES(kNormalNumerator, s);
  const double q = FUSECONV_SERIES(kNormalDenominator, s);
  const double inside = 0.5 + x * quotient(p, q);  // error 1e-17 for |x| < 8.3
  return x < -8.3 ? 0.0 : x > 8.3 ? 1.0 : inside;
}

// (1 - e) / (1 + e) with e = exp(-2 |x|). Near 0, where the difference cancels, another formula is used.
FUSECONV_INLINE float hyperbolic_tangent(float x) {
  const float z = x < 0 ? -x : x;
  const float e = exp_of_negative(-2.0f * z);
  const float large = (1.0f - e) / (1.0f + e);
  const float s = x * x;
  const float small = x + x * (s * polynomial(s, -0.333332819411802f, 0.13331442179752703f, -0.05373971376214003f,
                                              0.020639083413902325f, -0.005704983122211788f));  // error 4.4e-9
  return z < 0.625f ? small : (x < 0 ? -large : large);
}

// tanh(x) = x + x s p / q, s = x^2, to 1.8e-18
FUSECONV_COEFFICIENTS(kTangentNumerator, -0.33333333333333323444, -0.02049677205083526265, -0.0001990882876921468344)
FUSECONV_COEFFICIENTS(kTangentDenominator, 1.0, 0.46149031615249060104, 0.02328862941957102032,
                      0.00020643761619801083302)

FUSECONV_INLINE double hyperbolic_tangent(double x) {
  const double z = x < 0 ? -x : x;
  const double e = exp_of_negative(-2.0 * z);
  const double s = x * x;
  const double q = FUSECONV_SERIES(kTangentDenominator, s);
  const bool small = z < 0.625;
  const double fraction = quotient(small ? s * FUSECONV_SERIES(kTangentNumerator, s) : 1.0 - e, small ? q : 1.0 + e);
  return small ? x + x * fraction : (x < 0 ? -fraction : fraction);
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
