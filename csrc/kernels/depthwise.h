// Computes y = act(x * weight + bias + residual), or adds the residual after the activation, where x * weight is a
// depthwise convolution of channels-last images on CUDA.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs the convolution and returns true, or returns false if the kernel does not support it. The kernel supports square
// filters of size 3, 5 and 7 without dilation, strides of 1 and 2, f16, bf16 and f32, and channels that fill aligned
// vectors of 16 bytes.
bool depthwise(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
