// Computes a dense convolution in f16 or bf16 and its epilogue on CUDA, with fuseconv's GEMM kernel or with cuDNN,
// whichever is faster.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs the convolution and returns true. Returns false if neither library supports the convolution; the elements of y
// are then undefined. Both require a channels-last result. cuDNN also computes grouped convolutions whose groups have
// at least four channels, and 3-D convolutions.
bool dense_convolution(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
