// One elementwise pass, what no GEMM's epilogue has done: y = act(y + bias) + residual, in place, or, when gated,
// y[m, n] = act(scratch[m, n] + bias[n]) * (scratch[m, N + n] + bias[N + n]).
#pragma once

#include "gemm/problem.h"

namespace fuseconv::linear {

// Reads problem's y, m, n, y_stride, bias, activation, residual, gated, scratch and stream. Throws std::runtime_error
// when CUDA fails.
void pass(const Problem& problem);

}  // namespace fuseconv::linear
