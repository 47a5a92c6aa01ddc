// Element types and their conversion to the compute type: f64 for f64; f32 for f32, f16 and bf16. This is host code,
// compiled once per instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "core/isa.h"
#include "core/tensor_view.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace fuseconv {
inline namespace FUSECONV_ISA {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

// The type in which a kernel computes.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

FUSECONV_INLINE float widen(float x) { return x; }
FUSECONV_INLINE double widen(double x) { return x; }
FUSECONV_INLINE float widen(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

FUSECONV_INLINE float widen(f16 x) {
  // Moving the exponent and the fraction to their positions in f32 gives the value times 2^-112. Multiplying by 2^112
  // is exact and also normalizes subnormals. Infinities and NaNs have the largest exponent, whose remaining bits must
  // be set.
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : finite));
}

template <class T>
FUSECONV_INLINE T narrow(Compute<T> x) {
  if constexpr (std::is_same_v<T, bf16>) {
    // Rounds to nearest even at the 16 bits that are dropped. A NaN keeps its sign and becomes quiet.
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
  } else if constexpr (std::is_same_v<T, f16>) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Normal results: rebias the exponent and round to nearest even; a carry out of the fraction is the next exponent.
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal results: adding one half makes the adder align the fraction and round it to units of 2^-24.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    // 65520 and above round to infinity.
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t result = magnitude >= 0x477ff000u ? large : magnitude < 0x38800000u ? subnormal : normal;
    return {static_cast<uint16_t>(sign | result)};
  } else {
    return x;
  }
}

// Converts n elements. A compiler vectorizes the conversions above, but does not use the instructions of F16C.
template <class T>
void widen(const T* x, Compute<T>* y, int64_t n) {
#if defined(__F16C__)
  for (; std::is_same_v<T, f16> && n >= 8; x += 8, y += 8, n -= 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    _mm256_storeu_ps(reinterpret_cast<float*>(y), _mm256_cvtph_ps(halves));
  }
#endif
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    y[i] = widen(x[i]);
  }
}

template <class T>
void narrow(const Compute<T>* x, T* y, int64_t n) {
#if defined(__F16C__)
  for (; std::is_same_v<T, f16> && n >= 8; x += 8, y += 8, n -= 8) {
    const __m256 values = _mm256_loadu_ps(reinterpret_cast<const float*>(x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    y[i] = narrow<T>(x[i]);
  }
}

// Calls `function` with a value of the element type of `dtype`.
template <class Function>
void dispatch(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::f32:
      return function(float{});
    case Dtype::f64:
      return function(double{});
    case Dtype::f16:
      return function(f16{});
    case Dtype::bf16:
      return function(bf16{});
    case Dtype::i64:
    case Dtype::other:
      throw std::logic_error("fuseconv: a kernel was called with a dtype that outputs() did not refuse");
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
