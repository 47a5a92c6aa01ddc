// s[r, c] = x[r, c] + residual[r, c];  y[r, c] = act((s[r, c] - mean[r]) / sqrt(var[r] + eps) * weight[c] + bias[c])
//
// mean and var are of row r, var the mean of squared distances (biased). Two passes over a row that stays in cache, in
// f32 for f32, f16 and bf16 and in f64 for f64. The norm is that of s before s is rounded to f16 or bf16.
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct LayerNorm {
  In x;
  std::optional<In> residual;
  std::optional<In> weight;
  std::optional<In> bias;
  double eps;
  Activation activation;
  Out y;
  std::optional<Out> sum;  // s, where the caller wants it
};

// Checks the arguments that all norms of rows have.
inline void check_layer_norm(const char* op, In x, const std::optional<In>& weight, const std::optional<In>& bias) {
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

inline namespace FUSECONV_ISA {

void layer_norm(CpuHost& host, const LayerNorm& norm);

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
