// Launches the kernel of kernels/depthwise_sm90.cuh.
#include "kernels/depthwise_sm90.cuh"

#include <algorithm>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/tensor_map.h"
#include "kernels/depthwise.h"

namespace fuseconv::cuda {
namespace {

using namespace diagonal;

constexpr int kMostBoxBytes = 24 << 10;  // three blocks fit in the shared memory of an SM

int quotient_up(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }

// The columns of a box along each dim.
struct Box {
  int across, down, deep;
};

// Chooses the columns of a box: as many as a block has, in the shape for which it reads the fewest pixels and leaves
// the fewest columns unused.
Box choose_box(Problem& p, int kernel, int stride) {
  const int lines = quotient_up(p.out_height, kRows);
  const auto inputs = [&](int outputs) { return (outputs - 1) * stride + kernel; };
  Box best{};
  int64_t least = 0;
  const auto consider = [&](int across, int down, int deep) {
    const int64_t box = int64_t{inputs(across)} * inputs(down * kRows) * deep;
    const int64_t tiles =
        int64_t{quotient_up(p.out_width, across)} * quotient_up(lines, down) * quotient_up(p.count, deep);
    const int64_t cost = tiles * (box + kColumns * kRows + 16 * kernel * kernel);
    if (box * kPixelBytes <= kMostBoxBytes && inputs(across) <= 256 && inputs(down * kRows) <= 256 &&
        (best.across == 0 || cost < least)) {
      least = cost;
      best = {across, down, deep};
    }
  };
  const auto each_part = [](int count, int most, auto visit) {  // the most, and fewer and fewer
    for (int parts = quotient_up(count, most); parts <= count; parts = parts < 8 ? parts + 1 : parts * 2) {
      visit(quotient_up(count, parts));
    }
  };
  each_part(p.out_width, kColumns, [&](int across) {
    each_part(lines, kColumns / across, [&](int down) {
      if (across == p.out_width && down == lines) {
        each_part(p.count, kColumns / (across * down), [&](int deep) { consider(across, down, deep); });
      } else {
        consider(across, down, 1);
      }
    });
  });
  const auto& [across, down, deep] = best;
  const int tiles_across = quotient_up(p.out_width, across), tiles_down = quotient_up(lines, down);
  p.columns = across * down * deep;
  p.across = Divisor<uint32_t>(across), p.down = Divisor<uint32_t>(down), p.deep = deep;
  p.tiles_across = Divisor<uint32_t>(tiles_across), p.tiles_down = Divisor<uint32_t>(tiles_down);
  p.tiles = tiles_across * tiles_down * quotient_up(p.count, deep);
  p.box_width = inputs(across), p.box_height = inputs(down * kRows);
  p.box_bytes = quotient_up(int64_t{p.box_width} * p.box_height * deep * kPixelBytes, kAlignment) * kAlignment;
  return best;
}

Problem problem_of(const Convolution& c) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  Problem p{};
  p.x = c.x.data;
  p.weight = c.weight.data;
  p.bias = c.bias ? c.bias->data : nullptr;
  p.residual = c.residual ? c.residual->data : nullptr;
  p.height = number(c.x.sizes[2]), p.width = number(c.x.sizes[3]), p.channels = number(c.x.sizes[1]);
  p.out_height = number(c.y.sizes[2]), p.out_width = number(c.y.sizes[3]), p.count = number(c.x.sizes[0]);
  p.top = number(c.parameters.padding[0]), p.left = number(c.parameters.padding[1]);
  p.activation = c.activation;
  p.residual_first = c.residual_first;
  const Box box = choose_box(p, number(c.weight.sizes[2]), number(c.parameters.stride[0]));
  p.x_map = linear::images_map(c.x.dtype, c.x.data, {c.x.sizes[0], c.x.sizes[2], c.x.sizes[3], c.x.sizes[1]},
                               {box.deep, p.box_height, p.box_width, kChannels});
  p.y_map = linear::images_map(c.y.dtype, c.y.data, {c.y.sizes[0], c.y.sizes[2], c.y.sizes[3], c.y.sizes[1]},
                               {box.deep, box.down * kRows, box.across, kChannels});
  return p;
}

template <class T, int kKernel, int kStride>
bool launch(CudaHost& host, const Convolution& c) {
  const auto kernel = depthwise_sm90_kernel<T, kKernel, kStride>;
  // A library that was built without code for sm_90a has code for older GPUs, which the driver compiles for Hopper.
  static const bool is_compiled = [&] {
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= 90;
  }();
  if (!is_compiled) {
    return false;
  }
  const Problem p = problem_of(c);
  const int bytes = kAlignment + kResultBytes + kStages * (p.box_bytes + 8);
  constexpr int kMostBytes = kAlignment + kResultBytes + kStages * (kMostBoxBytes + 8);
  allow_shared_memory(kernel, kMostBytes);
  int per_sm = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kThreads, bytes),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  // Blocks that run at the same time compute all channels of adjacent tiles, so that they share pages of memory.
  const int channel_blocks = quotient_up(p.channels, kChannels);
  const int most_blocks = std::clamp(per_sm * sm_count() / channel_blocks, 1, p.tiles);
  const int blocks = quotient_up(p.tiles, quotient_up(p.tiles, most_blocks));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(channel_blocks), static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream_of(host);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch of depthwise_sm90");
  return true;
}

template <class T, int kKernel>
bool launch(CudaHost& host, const Convolution& c) {
  return c.parameters.stride[0] == 1 ? launch<T, kKernel, 1>(host, c) : launch<T, kKernel, 2>(host, c);
}

template <class T>
bool launch(CudaHost& host, const Convolution& c) {
  const int64_t kernel = c.weight.sizes[2];
  return kernel == 3 ? launch<T, 3>(host, c) : kernel == 5 ? launch<T, 5>(host, c) : launch<T, 7>(host, c);
}

}  // namespace

bool depthwise_sm90(CudaHost& host, const Convolution& c) {
  if (linear::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) {
    return false;
  }
  return c.y.dtype == Dtype::f16    ? launch<__half>(host, c)
         : c.y.dtype == Dtype::bf16 ? launch<__nv_bfloat16>(host, c)
                                    : false;
}

}  // namespace fuseconv::cuda
