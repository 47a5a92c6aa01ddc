// An elementwise pass that computes the part of a layer that the GEMM's epilogue left out: y = act(y + bias) +
// residual, in place, with the residual before or after the activation, or, if gated, y[m, n] = act(scratch[m, n] +
// bias[n]) * (scratch[m, N + n] + bias[N + n]).
#pragma once

#include "gemm/problem.h"

namespace fuseconv::linear {

// Runs the pass. Uses the problem's y, m, n, y_stride, bias, activation, residual, residual_first, gated, scratch and
// stream. Throws std::runtime_error if CUDA fails.
void pass(const Problem& problem);

}  // namespace fuseconv::linear
