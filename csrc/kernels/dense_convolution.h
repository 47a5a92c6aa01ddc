// Computes a dense convolution and its epilogue on CUDA: in f16 or bf16 with fuseconv's GEMM kernel or with cuDNN,
// whichever is faster, and in f32 with fuseconv's GEMM kernels, in TF32 or without it.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs the convolution and returns true. Returns false if neither library supports the convolution; the elements of y
// are then undefined. Both require a channels-last result. The GEMM kernels compute 1-D and 2-D convolutions, without
// TF32 only those of one group. cuDNN also computes 2-D convolutions with groups of at least four channels, and 3-D
// ones.
bool dense_convolution(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
