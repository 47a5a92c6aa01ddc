// y = act(x * weight + bias + residual), or with the residual after the activation: a depthwise convolution of images
// that are channels last, on CUDA.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs it and returns true, or returns false if the kernel does not take it: it takes square kernels of 3, 5 and 7
// without dilation, strides of 1 and 2, f16, bf16 and f32, and channels that fill vectors of 16 aligned bytes.
bool depthwise(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
