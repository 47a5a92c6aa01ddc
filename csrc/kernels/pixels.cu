#include "kernels/pixels.h"

#include <algorithm>

#include "core/cuda.cuh"
#include "core/layout.h"

namespace fuseconv::cuda {
namespace {

constexpr int kThreads = 256;

struct Pixels {
  const void* x;
  void* y;
  int64_t count, stride_n, stride_c, stride_h, stride_w;
  unsigned height, width;
  int channels;
};

// 16-bit elements are copied unchanged.
__global__ void __launch_bounds__(kThreads) pack_kernel(const Pixels p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.count; i += step) {
    const int64_t row = i / p.width;
    const int64_t offset = row / p.height * p.stride_n + row % p.height * p.stride_h + i % p.width * p.stride_w;
    Vector<uint16_t, kPixelChannels> pixel;
#pragma unroll
    for (int c = 0; c < kPixelChannels; ++c) {
      pixel.values[c] = c < p.channels ? static_cast<const uint16_t*>(p.x)[offset + c * p.stride_c] : uint16_t{0};
    }
    static_cast<Vector<uint16_t, kPixelChannels>*>(p.y)[i] = pixel;
  }
}

}  // namespace

void pack_pixels(CudaHost& host, In x, Out y) {
  const int64_t count = element_count(x) / x.sizes[1];
  const Pixels p{x.data,
                 y.data,
                 count,
                 x.strides[0],
                 x.strides[1],
                 x.strides[2],
                 x.strides[3],
                 static_cast<unsigned>(x.sizes[2]),
                 static_cast<unsigned>(x.sizes[3]),
                 static_cast<int>(x.sizes[1])};
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  pack_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(host)>>>(p);
  check_launch("pack_pixels");
}

}  // namespace fuseconv::cuda
