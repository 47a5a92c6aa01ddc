// Computes a convolution of images with at most four channels, which is the first layer of most vision models, with its
// epilogue. Other kernels waste most of their work on so few channels.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs the convolution and returns true. Returns false, without any effect, if the kernel does not support the
// convolution. The kernel supports 1-D and 2-D convolutions in f32, f16 and bf16 with any kernel that fits in shared
// memory. x and weight may have any strides; y and the residual are channels last with a multiple of eight channels.
bool few_channels(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
