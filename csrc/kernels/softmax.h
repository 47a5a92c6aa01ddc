// y[r, c] = exp(s[r, c] - m[r]) / sum over c of exp(s[r, c] - m[r]), in place;  s = y + mask,  m[r] = max over c of s
//
// Computes in f32 for f32, f16 and bf16, and in f64 for f64, and rounds once.
#pragma once

#include <optional>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {

// y is contiguous. The mask has the sizes of y and may have any strides. If all scores of a row are -inf, its results
// are 0 or NaN. If `is_causal`, y is [..., S, T], row s takes its maximum and its sum over the columns c <= s only, and
// its other results are 0.
struct Softmax {
  Out y;
  std::optional<In> mask;
  bool hidden_is_zero;
  bool is_causal = false;
};

inline namespace FUSECONV_ISA {

void softmax(CpuHost& host, const Softmax& softmax);

}  // namespace FUSECONV_ISA

namespace cuda {

void softmax(CudaHost& host, const Softmax& softmax);

}  // namespace cuda
}  // namespace fuseconv
