// Describes a convolution as a linear layer whose x is an implicit matrix (gemm/problem.h).
#pragma once

#include "core/host.h"
#include "gemm/problem.h"
#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Returns the linear layer that has the result and the epilogue of a channels-last convolution. For a 2-D convolution,
// the layer also has the implicit matrix x and the weight, but not their addresses.
linear::Problem problem_of(const Convolution& convolution);

// Sets the addresses of x and weight. Copies an operand that is not channels last and aligned. Does nothing if the
// addresses are already set.
void set_operands(CudaHost& host, const Convolution& convolution, linear::Problem& problem);

// Returns the tensor if it is channels last and aligned, otherwise a copy that is.
In laid_out(CudaHost& host, In tensor, Spec& spec);

}  // namespace fuseconv::cuda
