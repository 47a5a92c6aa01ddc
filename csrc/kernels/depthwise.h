// Computes a depthwise convolution of channels-last images on CUDA, with its epilogue: y = act(x * weight + bias +
// residual) or y = act(x * weight + bias) + residual, where * is the convolution.
#pragma once

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// Runs the convolution and returns true. Returns false, without any effect, if the kernel does not support the
// convolution. The kernel supports square filters of size 3, 5 and 7 without dilation, strides of 1 and 2, f16, bf16
// and f32, and an even number of channels. It is fastest if the channels fill vectors of 16 bytes.
bool depthwise(CudaHost& host, const Convolution& convolution);

// Does the same with Hopper's instructions, for a convolution that `depthwise` supports. Returns false, without any
// effect, in f32, on other GPUs, and if there is no code for Hopper.
bool depthwise_sm90(CudaHost& host, const Convolution& convolution);

// Does the same for any window, stride and dilation, in 1-D and 2-D, and any number of channels. Returns false, without
// any effect, in f64 and if y is not channels last.
bool depthwise_windows(CudaHost& host, const Convolution& convolution);

}  // namespace fuseconv::cuda
