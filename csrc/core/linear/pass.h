// One elementwise pass over the rows of y: y = act(y + bias) + residual, in place. What no GEMM's epilogue has done.
#pragma once

#include "core/linear/problem.h"

namespace fuseconv::linear {

// Reads problem's y, m, n, y_stride, bias, activation, residual and stream. Throws std::runtime_error when CUDA fails.
void finish_in_place(const Problem& problem);

}  // namespace fuseconv::linear
