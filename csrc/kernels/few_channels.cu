// A convolution of few channels moves much memory and multiplies little. A block copies the part of an image that it
// needs to shared memory once, as pixels of four channels, and computes 256 pixels of the result from it.
//
// The products run on Tensor Cores, as a matrix product whose depth is the positions of the convolution's kernel, with
// four channels each. A fragment of the left operand is read directly from the pixels in shared memory: a register of
// it holds two channels of one pixel. The weight is stored in shared memory in the order of its fragments, and stays
// there while the block computes one tile of the result after another.
#include "kernels/few_channels.h"

#include <algorithm>
#include <bit>
#include <span>

#include "arch/sm80.cuh"
#include "core/coarse.cuh"
#include "core/cuda.cuh"
#include "core/layout.h"
#include "core/shared_memory.h"
#include "kernels/images.h"
#include "kernels/run.cuh"

namespace fuseconv::cuda {
namespace {

constexpr int kChannels = 4;  // of a pixel in shared memory
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRows = 16;                 // pixels of the result per product
constexpr int kProducts = 2;              // per warp, side by side
constexpr int kSteps = 16 / kChannels;    // positions of the kernel per product
constexpr size_t kMostShared = 96 << 10;  // available on every GPU from sm_80 on

// While one block copies, another computes.
__host__ __device__ constexpr int blocks_per_sm(int columns) { return (columns > 32 ? 16 : 24) / kWarps; }

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  int64_t x_image, x_channel, x_row, x_column;
  int64_t weight_out, weight_channel, weight_row, weight_column;
  int channels, height, width, out_channels, out_height, out_width;
  int kernel_height, kernel_width, stride_y, stride_x, top, left, dilation_y, dilation_x;
  int steps;         // along the depth
  int down, across;  // the products of a block's tile, along each dim
  int tiles_down, tiles_across, tiles;
  int part_height, part_width;  // the pixels of x under a tile
  unsigned part_width_inverse;  // 2^32 / part_width, rounded up
  AnyActivation act;
  bool residual_first;
};

// Shared memory: the weight, the places of the positions, the bias, the pixels, and for each warp a part of the result.
template <int kColumns>
struct Layout {
  static constexpr int kRowFloats = kColumns + 4;  // of a warp's part
  uint2* weight;                                   // [steps][kColumns / 8][32]
  int* places;                                     // [steps][kSteps]; negative beyond the last position
  float* bias;                                     // [kColumns]
  float* results;                                  // [kWarps][kRows][kRowFloats]
  uint2* pixels;                                   // [part_height][part_width]

  __host__ __device__ static size_t bytes(int steps, int64_t pixels) {
    const size_t weights = static_cast<size_t>(steps) * kColumns / 8 * 32 * sizeof(uint2);
    const size_t places = static_cast<size_t>(steps) * kSteps * sizeof(int);
    return weights + places + sizeof(float) * kColumns + sizeof(float) * kWarps * kRows * kRowFloats +
           static_cast<size_t>(pixels) * sizeof(uint2);
  }

  __device__ Layout(void* shared, int steps) : weight(static_cast<uint2*>(shared)) {
    places = reinterpret_cast<int*>(weight + steps * kColumns / 8 * 32);
    bias = reinterpret_cast<float*>(places + steps * kSteps);
    results = bias + kColumns;
    pixels = reinterpret_cast<uint2*>(results + kWarps * kRows * kRowFloats);
  }
};

// Returns two elements of the weight, of the channels from `channel` on, or zeros where there are none.
template <class T>
__device__ __forceinline__ uint32_t weight_pair(const Problem& p, int out, int position, int channel) {
  uint32_t pair = 0;
  if (out < p.out_channels && position < p.kernel_height * p.kernel_width) {
    const uint16_t* const from = static_cast<const uint16_t*>(p.weight) + out * p.weight_out +
                                 position / p.kernel_width * p.weight_row + position % p.kernel_width * p.weight_column;
    for (int c = 0; c < 2; ++c) {
      if (channel + c < p.channels) {
        pair |= uint32_t{from[(channel + c) * p.weight_channel]} << 16 * c;
      }
    }
  }
  return pair;
}

template <class T, int kColumns>
__device__ __forceinline__ void load_weight(const Problem& p, const Layout<kColumns>& shared, int first) {
  for (int i = threadIdx.x; i < p.steps * kColumns / 8 * 32; i += kThreads) {
    const int lane = i % 32, tile = i / 32 % (kColumns / 8), step = i / 32 / (kColumns / 8);
    const int out = first + tile * 8 + lane / 4, channel = lane % 2 * 2;
    const int position = step * kSteps + lane % 4 / 2;
    shared.weight[i] = {weight_pair<T>(p, out, position, channel), weight_pair<T>(p, out, position + 2, channel)};
  }
  for (int i = threadIdx.x; i < p.steps * kSteps; i += kThreads) {
    const int y = i / p.kernel_width, x = i % p.kernel_width;
    shared.places[i] = y < p.kernel_height ? y * p.dilation_y * p.part_width + x * p.dilation_x : -1;
  }
  for (int i = threadIdx.x; i < kColumns; i += kThreads) {
    const bool has_bias = p.bias != nullptr && first + i < p.out_channels;
    shared.bias[i] = has_bias ? widen(static_cast<const T*>(p.bias)[first + i]) : 0.0f;
  }
}

// Copies the pixels from (top, left) on. Pixels outside the image, and channels that it does not have, become zeros.
__device__ __forceinline__ void load_pixels(const Problem& p, uint2* pixels, int image, int top, int left) {
  const uint16_t* const from = static_cast<const uint16_t*>(p.x) + image * p.x_image;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.part_height * p.part_width; i += kThreads) {
    const int row = static_cast<int>(__umulhi(static_cast<unsigned>(i), p.part_width_inverse)), y = top + row,
              x = left + i - row * p.part_width;
    uint32_t values[kChannels] = {};
    if (static_cast<unsigned>(y) < static_cast<unsigned>(p.height) &&
        static_cast<unsigned>(x) < static_cast<unsigned>(p.width)) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (c < p.channels) {
          values[c] = __ldg(from + y * p.x_row + x * p.x_column + c * p.x_channel);
        }
      }
    }
    pixels[i] = {values[0] | values[1] << 16, values[2] | values[3] << 16};
  }
}

// Computes the epilogue of eight channels of one pixel, and writes them.
template <class T>
__device__ __forceinline__ void finish(const Problem& p, const float* sums, int64_t place) {
  float values[8], addend[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = sums[i];
  }
  if (p.residual != nullptr) {
    widen_run(load_run<8>(static_cast<const T*>(p.residual) + place), addend);
  }
  const bool before = p.residual != nullptr && p.residual_first, after = p.residual != nullptr && !p.residual_first;
  dispatch(p.act.activation, [&](auto act) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = before ? values[i] + addend[i] : values[i];
      const float y = value_of(act(FormulaType<T>(x)));
      values[i] = after ? y + addend[i] : y;
    }
  });
  store_run(static_cast<T*>(p.y) + place, narrow_run<T>(values));
}

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, blocks_per_sm(kColumns))
    few_channels_kernel(const __grid_constant__ Problem p) {
  constexpr int kTiles = kColumns / 8;
  extern __shared__ uint4 memory[];
  const Layout<kColumns> shared(memory, p.steps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.y * kColumns;
  float* const results = shared.results + warp * kRows * shared.kRowFloats;
  load_weight<T>(p, shared, first);
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int line = tile / p.tiles_across, image = line / p.tiles_down;
    const int tile_row = (line - image * p.tiles_down) * p.down;
    const int tile_column = (tile - line * p.tiles_across) * p.across * kRows;
    __syncthreads();  // the pixels of the tile before are no longer read
    load_pixels(p, shared.pixels, image, tile_row * p.stride_y - p.top, tile_column * p.stride_x - p.left);
    __syncthreads();
    const uint32_t* from[kProducts][2];  // this thread's two rows: its channels of the first pixels of their windows
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      const int product = warp * kProducts + m, row = product / p.across;
      const int column = (product - row * p.across) * kRows + lane / 4;
      const int pixel = row * p.stride_y * p.part_width + column * p.stride_x;
      from[m][0] = reinterpret_cast<const uint32_t*>(shared.pixels + pixel) + lane % 2;
      from[m][1] = from[m][0] + 8 * p.stride_x * 2;
    }
    float d[kProducts][kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[0][n][i] = d[1][n][i] = shared.bias[n * 8 + lane % 4 * 2 + i % 2];
      }
    }
#pragma unroll 2
    for (int step = 0; step < p.steps; ++step) {
      uint32_t a[kProducts][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = shared.places[step * kSteps + half * 2 + lane % 4 / 2];
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          a[m][half * 2] = place < 0 ? 0 : from[m][0][place * 2];
          a[m][half * 2 + 1] = place < 0 ? 0 : from[m][1][place * 2];
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint2 b = shared.weight[(step * kTiles + n) * 32 + lane];
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          arch::sm80::multiply(d[m][n], a[m], b.x, b.y, T());
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      __syncwarp();
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float* const to = results + lane / 4 * shared.kRowFloats + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = {d[m][n][0], d[m][n][1]};
        *reinterpret_cast<float2*>(to + 8 * shared.kRowFloats) = {d[m][n][2], d[m][n][3]};
      }
      __syncwarp();
      const int product = warp * kProducts + m, product_row = product / p.across;
      const int row = tile_row + product_row, column = tile_column + (product - product_row * p.across) * kRows;
#pragma unroll 1
      for (int i = lane; i < kRows * kTiles; i += 32) {
        const int pixel = i / kTiles, channel = i % kTiles * 8;
        if (row < p.out_height && column + pixel < p.out_width && first + channel < p.out_channels) {
          const int64_t place = (int64_t{image} * p.out_height + row) * p.out_width + column + pixel;
          finish<T>(p, results + pixel * shared.kRowFloats + channel, place * p.out_channels + first + channel);
        }
      }
    }
  }
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
  p.steps = quotient_up(p.kernel_height * p.kernel_width, kSteps);
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

template <class T, int kColumns>
bool launch(CudaHost& host, const Problem& p) {
  const size_t bytes = Layout<kColumns>::bytes(p.steps, int64_t{p.part_height} * p.part_width);
  if (bytes > kMostShared) {
    return false;
  }
  const auto kernel = few_channels_kernel<T, kColumns>;
  allow_shared_memory(kernel, kMostShared);
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
  if (given.x.rank > 4 || given.x.sizes[1] > kChannels || given.parameters.transposed || given.parameters.groups != 1 ||
      (given.y.dtype != Dtype::f16 && given.y.dtype != Dtype::bf16)) {
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
  const auto by_columns = [&]<class T>(T) {
    if (p.out_channels <= 16) {
      return launch<T, 16>(host, p);
    }
    return (p.out_channels > 32 && launch<T, 64>(host, p)) || launch<T, 32>(host, p);
  };
  return c.y.dtype == Dtype::f16 ? by_columns(__half()) : by_columns(__nv_bfloat16());
}

}  // namespace fuseconv::cuda
