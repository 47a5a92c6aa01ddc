// Prepares the kernel for convolutions of few channels: which it supports, and which tiles a block computes.
#include "kernels/few_channels.h"

#include <algorithm>
#include <bit>
#include <span>

#include "core/layout.h"
#include "core/shared_memory.h"
#include "kernels/few_channels_kernel.cuh"
#include "kernels/images.h"

namespace fuseconv::cuda {
namespace {

using namespace few;

constexpr int64_t kShortest = 9;           // a sum of fewer products is more exact in f32
constexpr size_t kHalfOfAnSm = 112 << 10;  // of Hopper's shared memory

// Returns how many bytes of shared memory a block can have on the current device.
size_t most_shared() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  const cudaError_t error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  check(error == cudaSuccess, "fuseconv: the size of shared memory cannot be read: ", cudaGetErrorString(error));
  return static_cast<size_t>(bytes);
}

int quotient_up(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }

Problem problem_of(const Convolution& c) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  Problem p{};
  p.x = c.x.data;
  p.weight = c.weight.data;
  p.bias = c.bias ? c.bias->data : nullptr;
  p.residual = c.residual ? c.residual->data : nullptr;
  p.y = c.y.data;
  p.x_image = c.x.strides[0], p.x_channel = c.x.strides[1], p.x_row = c.x.strides[2], p.x_column = c.x.strides[3];
  p.weight_out = c.weight.strides[0], p.weight_channel = c.weight.strides[1];
  p.weight_row = c.weight.strides[2], p.weight_column = c.weight.strides[3];
  p.channels = number(c.x.sizes[1]), p.height = number(c.x.sizes[2]), p.width = number(c.x.sizes[3]);
  p.out_channels = number(c.y.sizes[1]), p.out_height = number(c.y.sizes[2]), p.out_width = number(c.y.sizes[3]);
  p.kernel_height = number(c.weight.sizes[2]), p.kernel_width = number(c.weight.sizes[3]);
  p.stride_y = number(stride[0]), p.stride_x = number(stride[1]);
  p.top = number(padding[0]), p.left = number(padding[1]);
  p.dilation_y = number(dilation[0]), p.dilation_x = number(dilation[1]);
  p.down = std::bit_floor(static_cast<unsigned>(std::min(p.out_height, kWarps * kProducts)));
  p.across = kWarps * kProducts / p.down;
  p.tiles_down = quotient_up(p.out_height, p.down);
  p.tiles_across = quotient_up(p.out_width, p.across * kRows);
  p.tiles = number(c.x.sizes[0] * p.tiles_down * p.tiles_across);
  p.part_height = number((p.down - 1) * stride[0] + (p.kernel_height - 1) * dilation[0] + 1);
  p.part_width = number((p.across * kRows - 1) * stride[1] + (p.kernel_width - 1) * dilation[1] + 1);
  p.part_width_inverse = static_cast<unsigned>(((uint64_t{1} << 32) + p.part_width - 1) / p.part_width);
  p.act = {c.activation};
  p.residual_first = c.residual_first;
  return p;
}

// Runs the kernel and returns true, or returns false if a block needs more than `most` bytes of shared memory.
template <class T, int kColumns>
bool launch(CudaHost& host, Problem p, size_t most) {
  p.words = words_of<T>(p.channels);
  p.steps = quotient_up(int64_t{p.kernel_height} * p.kernel_width * p.words, kDepth);
  const size_t bytes = Layout<kColumns>::bytes(p.steps, int64_t{p.part_height} * p.part_width * p.words);
  if (bytes > most) {
    return false;
  }
  const auto kernel = few_channels_kernel<T, kColumns>;
  allow_shared_memory(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(std::min(p.tiles, blocks_per_sm(kColumns) * sm_count())),
                  static_cast<unsigned>(quotient_up(p.out_channels, kColumns)));
  kernel<<<grid, kThreads, bytes, stream_of(host)>>>(p);
  check_launch("few_channels");
  return true;
}

// Returns whether all numbers of a convolution, and the extents of a tile, fit in 31 bits.
bool is_in_range(const Convolution& c) {
  constexpr int64_t kLimit = int64_t{1} << 22;
  const auto small = [](std::span<const int64_t> numbers) {
    return std::ranges::all_of(numbers, [](int64_t number) { return number < kLimit; });
  };
  const auto few = [](In tensor) { return element_count(tensor) < (int64_t{1} << 31); };
  return few(c.x) && few(c.y) && small({c.weight.sizes, 4}) && small(c.parameters.stride) &&
         small(c.parameters.padding) && small(c.parameters.dilation) &&
         c.weight.sizes[2] * c.parameters.dilation[0] < kLimit && c.weight.sizes[3] * c.parameters.dilation[1] < kLimit;
}

}  // namespace

bool few_channels(CudaHost& host, const Convolution& given) {
  if (given.x.rank > 4 || given.x.sizes[1] > kMostChannels || given.parameters.transposed ||
      given.parameters.groups != 1 || given.y.dtype == Dtype::f64) {
    return false;
  }
  const Images images(given);
  const Convolution& c = images.convolution;
  const auto is_dense_and_aligned = [](In tensor) { return fits_channels_last(tensor) && is_aligned(tensor.data); };
  if (!is_dense_and_aligned(c.y) || c.y.sizes[1] % 8 != 0 || (c.residual && !is_dense_and_aligned(*c.residual)) ||
      (c.bias && c.bias->strides[0] != 1) || !is_in_range(c)) {
    return false;
  }
  const Problem p = problem_of(c);
  if (c.y.dtype == Dtype::f32 && int64_t{p.kernel_height} * p.kernel_width * p.channels < kShortest) {
    return false;
  }
  const size_t all = most_shared(), half = std::min(all, kHalfOfAnSm);
  bool ran = false;
  dispatch(c.y.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) <= sizeof(float)) {
      ran = (p.out_channels <= 16 && launch<T, 16>(host, p, half)) ||
            (p.out_channels > 32 && launch<T, 64>(host, p, half)) || launch<T, 32>(host, p, half) ||
            launch<T, 32>(host, p, all);
    }
  });
  return ran;
}

}  // namespace fuseconv::cuda
