// Computes y[n, h, w, c] = x[n, c, h, w] for c < C, and 0 for C <= c < 4. This pads images with C < 4 channels to the
// four channels that cuDNN's kernels for a model's first layer require.
#pragma once

#include "core/host.h"

namespace fuseconv::cuda {

inline constexpr int kPixelChannels = 4;

// x is [N, C, H, W] in f16 or bf16, with any strides and 1 <= C <= 4; y is [N, 4, H, W] and channels last.
void pack_pixels(CudaHost& host, In x, Out y);

}  // namespace fuseconv::cuda
