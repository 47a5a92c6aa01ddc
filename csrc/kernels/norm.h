// s[r, c] = x[r, c] + residual[r, c];  y[r, c] = act((s[r, c] - m[r]) / sqrt(v[r] + eps) * weight[c] + bias[c])
//
// Layer norm is centered: m is the mean of row r, and v is the mean of squared distances to m. RMS norm is not
// centered: m is 0, and v is the mean of squares (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
// Computes in f32 for f32, f16 and bf16, and in f64 for f64. Normalizes s before s is rounded to f16 or bf16.
#pragma once

#include <array>
#include <optional>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct Norm {
  In x;
  std::optional<In> residual;
  std::optional<In> weight;
  std::optional<In> bias;
  double eps;
  bool centred;
  Activation activation;
  Out y;
  std::optional<Out> sum;  // s, if the caller needs it
};

// Checks the arguments that are common to all row norms.
inline void check_norm(const char* op, In x, const std::optional<In>& weight, const std::optional<In>& bias) {
  check_has_dims(op, {"x", x});
  common_dtype(op, {{"x", x}});
  if (weight) {
    common_dtype(op, {{"x", x}, {"weight", *weight}});
    check_vector(op, {"weight", *weight}, {"x", x});
  }
  if (bias) {
    common_dtype(op, {{"x", x}, {"bias", *bias}});
    check_vector(op, {"bias", *bias}, {"x", x});
  }
}

// Returns the Specs of y and s, the results of a norm of x + residual. The Spec of s is empty if keep_sum is false.
inline std::array<Spec, 2> norm_and_sum(const char* op, In x, In residual, bool keep_sum) {
  common_dtype(op, {{"x", x}, {"residual", residual}});
  check_same_sizes(op, {"x", x}, {"residual", residual});
  const int64_t none = 0;
  return {contiguous_like(x),
          keep_sum ? broadcast(op, {"x", x}, {"residual", residual}) : contiguous(x.dtype, 1, &none)};
}

inline namespace FUSECONV_ISA {

void norm(CpuHost& host, const Norm& norm);

}  // namespace FUSECONV_ISA

namespace cuda {

void norm(CudaHost& host, const Norm& norm);

}  // namespace cuda
}  // namespace fuseconv
