// y[n, h, w, c] = x[n, c, h, w] for c < C, and 0 for C <= c < 4: images of few channels as cuDNN's kernels for the
// first layer of a model take them.
#pragma once

#include "core/host.h"

namespace fuseconv::cuda {

inline constexpr int kPixelChannels = 4;

// x [N, C, H, W] in f16 or bf16, of any strides, with 1 <= C <= 4; y [N, 4, H, W] is channels last.
void pack_pixels(CudaHost& host, In x, Out y);

}  // namespace fuseconv::cuda
