// The kernel for depthwise convolutions with any window, stride and dilation. cuDNN would compile an engine for each
// new size of some of them, which takes up to half a second.
//
// A thread computes up to kOutputs positions of a row for two channels, or for one if the number of channels is odd. It
// visits the window kTaps positions at a time: it loads the inputs beneath them once, widens them to f32, and adds
// their products to every result that needs them. The results of a thread are `spacing` apart: with a dilation of 3,
// results that are 3 apart read the same inputs. If the stride is too large for results to share inputs, a thread
// computes one. The threads of a warp are neighbors along the channels.
//
// The block copies the weights to shared memory as f32, as many rows of the window at a time as fit.
#include <algorithm>
#include <numeric>

#include "core/layout.h"
#include "kernels/depthwise.h"
#include "kernels/depthwise_epilogue.cuh"
#include "kernels/images.h"
#include "kernels/implicit_gemm.h"

namespace fuseconv::cuda {
namespace {

constexpr int kLanes = 32;  // threads along the channels
constexpr int kParts = 8;   // threads along the positions
constexpr int kMostOutputs = 8, kMostTaps = 16;
constexpr int kMostBlocks = (1 << 16) - 1;  // along the second dim of a grid
constexpr int kShared = 48 << 10;           // available without asking

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  int64_t x_image;
  int x_row, x_column;  // strides
  int channels, height, width, out_height, out_width;
  int kernel_height, kernel_width, stride_y, stride_x, top, left, dilation_y, dilation_x;
  int spacing;     // between the results of a thread
  unsigned parts;  // of a row: one for each thread
  unsigned items;  // the parts of all rows of all images
  int rows;        // of the window: those whose weights are in shared memory at a time
  AnyActivation act;
  bool residual_first;
};

// Results that are `spacing` apart read inputs that are kStride times the dilation apart.
template <class T, int kPair, int kOutputs, int kStride, int kTaps>
__global__ void __launch_bounds__(kLanes* kParts) depthwise_windows_kernel(const Problem p) {
  constexpr int kChannels = kLanes * kPair, kInputs = (kOutputs - 1) * kStride + kTaps;
  extern __shared__ float weights[];  // [p.rows, p.kernel_width, kChannels]
  const int own = static_cast<int>(threadIdx.x) * kPair, first = static_cast<int>(blockIdx.y) * kChannels;
  const int thread = static_cast<int>(threadIdx.y) * kLanes + static_cast<int>(threadIdx.x), channel = first + own;
  const unsigned item = blockIdx.x * kParts + threadIdx.y, line = item / p.parts;
  const bool works = item < p.items && channel < p.channels;
  const int part = static_cast<int>(item - line * p.parts), section = part / p.spacing;
  const int64_t image = line / static_cast<unsigned>(p.out_height);
  const int row = static_cast<int>(line % static_cast<unsigned>(p.out_height));
  const int column = section * kOutputs * p.spacing + part - section * p.spacing;
  const int above = row * p.stride_y - p.top, before = column * p.stride_x - p.left;
  const int step = p.dilation_x * p.x_column;
  const T* const pixels = static_cast<const T*>(p.x) + image * p.x_image + channel;
  float bias[kPair] = {};
  if (works && p.bias != nullptr) {
    widen_run(load_run<kPair>(static_cast<const T*>(p.bias) + channel), bias);
  }
  float sums[kOutputs][kPair];
#pragma unroll
  for (int i = 0; i < kOutputs * kPair; ++i) {
    sums[i / kPair][i % kPair] = bias[i % kPair];
  }
  const int window = p.kernel_height * p.kernel_width;
  for (int copied = 0; copied < p.kernel_height; copied += p.rows) {
    const int rows = min(p.rows, p.kernel_height - copied), taps = rows * p.kernel_width;
    if (copied > 0) {
      __syncthreads();
    }
    for (int i = thread; i < min(kChannels, p.channels - first) * taps; i += kLanes * kParts) {
      const int of = i / taps, tap = i - of * taps;
      const T* const weight = static_cast<const T*>(p.weight) + int64_t{first + of} * window;
      weights[tap * kChannels + of] = widen(weight[copied * p.kernel_width + tap]);
    }
    __syncthreads();
    for (int r = 0; works && r < rows; ++r) {
      const int h = above + (copied + r) * p.dilation_y;
      if (static_cast<unsigned>(h) >= static_cast<unsigned>(p.height)) {
        continue;
      }
      int w = before, offset = h * p.x_row + before * p.x_column;
#pragma unroll 1
      for (int done = 0; done < p.kernel_width; done += kTaps) {
        const int left = p.kernel_width - done;
        Run<T, kPair> runs[kInputs];
        if (w >= 0 && w + (kInputs - 1) * p.dilation_x < p.width) {  // the same for all threads of a warp
#pragma unroll
          for (int i = 0; i < kInputs; ++i) {
            runs[i] = load_run<kPair>(pixels + (offset + i * step));
          }
        } else {
          // Loads in branches would wait for one another: in the place of a position outside, another one is read.
#pragma unroll
          for (int i = 0; i < kInputs; ++i) {
            const int position = w + i * p.dilation_x;
            const bool inside = static_cast<unsigned>(position) < static_cast<unsigned>(p.width);
            runs[i] = load_run<kPair>(pixels + (inside ? offset + i * step : 0));
            runs[i] = inside ? runs[i] : constant_run<T, kPair>(T(0.0f));
          }
        }
        w += kTaps * p.dilation_x;
        offset += kTaps * step;
        float wide[kInputs][kPair];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) {
          widen_run(runs[i], wide[i]);
        }
        const float* const factors = weights + (r * p.kernel_width + done) * kChannels + own;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          if (tap < left) {
            const auto factor = load_run<kPair>(factors + tap * kChannels);
#pragma unroll
            for (int i = 0; i < kOutputs * kPair; ++i) {
              sums[i / kPair][i % kPair] += wide[i / kPair * kStride + tap][i % kPair] * factor.words[i % kPair];
            }
          }
        }
      }
    }
  }
  if (works) {
    const int64_t place = (int64_t{line} * p.out_width + column) * p.channels + channel;
    finish<T>(p, sums, [&](auto visit) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        if (column + i * p.spacing < p.out_width) {
          visit(place + int64_t{i} * p.spacing * p.channels, sums[i]);
        }
      }
    });
  }
}

int64_t quotient_up(int64_t count, int64_t each) { return (count + each - 1) / each; }

template <class T, int kPair, int kOutputs, int kStride, int kTaps>
void launch(CudaHost& host, Problem p, int64_t images) {
  // The parts of a section begin at the first `spacing` positions of it, of which the last section may have fewer.
  const int64_t section = int64_t{kOutputs} * p.spacing, whole = (p.out_width - 1) / section;
  p.parts = static_cast<unsigned>(whole * p.spacing + std::min<int64_t>(p.spacing, p.out_width - whole * section));
  const int64_t items = images * p.out_height * p.parts;  // at most the positions of y
  p.items = static_cast<unsigned>(items);
  const int row_bytes = p.kernel_width * kLanes * kPair * static_cast<int>(sizeof(float));
  p.rows = std::min(p.kernel_height, kShared / row_bytes);
  const dim3 grid(static_cast<unsigned>(quotient_up(items, kParts)),
                  static_cast<unsigned>(quotient_up(p.channels, kLanes * kPair)));
  depthwise_windows_kernel<T, kPair, kOutputs, kStride, kTaps>
      <<<grid, dim3(kLanes, kParts), static_cast<size_t>(p.rows * row_bytes), stream_of(host)>>>(p);
  check_launch("depthwise_windows");
}

template <class T, int kPair, int kTaps>
void launch(CudaHost& host, Problem p, int64_t images) {
  const int common = std::gcd(p.stride_x, p.dilation_x), shared = p.stride_x / common;
  p.spacing = shared <= 2 ? p.dilation_x / common : 1;
  shared == 1   ? launch<T, kPair, kMostOutputs, 1, kTaps>(host, p, images)
  : shared == 2 ? launch<T, kPair, kMostOutputs, 2, kTaps>(host, p, images)
                : launch<T, kPair, 1, 1, kTaps>(host, p, images);
}

template <class T, int kPair>
void launch(CudaHost& host, const Problem& p, int64_t images) {
  p.kernel_width <= kMostTaps / 2 ? launch<T, kPair, kMostTaps / 2>(host, p, images)
                                  : launch<T, kPair, kMostTaps>(host, p, images);
}

bool is_small(int64_t number) { return number < (int64_t{1} << 15); }

// Returns whether the kernel's 32-bit numbers can hold those of a convolution.
bool is_in_range(const Convolution& c) {
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  for (const auto& numbers : {stride, padding, dilation, std::span(c.weight.sizes + 2, 2)}) {
    if (!std::ranges::all_of(numbers, is_small)) {
      return false;
    }
  }
  // The offsets of the positions under a window, also of those beyond the image, where nothing is read.
  const int64_t extents[] = {
      c.x.sizes[2] + 2 * padding[0] + 2 * c.weight.sizes[2] * dilation[0],
      c.x.sizes[3] + 2 * padding[1] + (kMostOutputs * stride[1] + c.weight.sizes[3] + kMostTaps) * dilation[1]};
  const int64_t channels = c.x.sizes[1];  // of the images where they are, or of a dense copy
  const int64_t steps[] = {std::max(c.x.strides[2], channels * c.x.sizes[3]), std::max(c.x.strides[3], channels)};
  return extents[0] * steps[0] + extents[1] * steps[1] < (int64_t{1} << 31) &&
         element_count(c.y) < (int64_t{1} << 31) && channels <= kLanes * kMostBlocks &&
         c.weight.sizes[3] <= kShared / static_cast<int>(sizeof(float) * 2 * kLanes);
}

// Returns whether the kernel can read the images where they are. Their channels are adjacent; `pair` channels at a time
// are aligned.
bool is_read_in_place(In x, int pair) {
  const auto is_whole = [&](int axis) { return x.strides[axis] >= 0 && x.strides[axis] % pair == 0; };
  return (is_channels_last(x) || fits_channels_last(x)) && x.strides[1] == 1 && is_whole(0) && is_whole(2) &&
         is_whole(3) && reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(pair * size_of(x.dtype)) == 0;
}

}  // namespace

bool depthwise_windows(CudaHost& host, const Convolution& given) {
  if (given.x.rank > 4 || given.parameters.groups == 1) {
    return false;
  }
  Images images(given);
  Convolution& c = images.convolution;
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  if (c.y.dtype == Dtype::f64 || transposed || groups != c.x.sizes[1] || c.weight.sizes[0] != groups ||
      c.weight.sizes[1] != 1 || !fits_channels_last(c.y) || !is_aligned(c.y.data) || !is_contiguous(c.weight) ||
      (c.bias && (c.bias->strides[0] != 1 || !is_aligned(c.bias->data))) || !is_in_range(c)) {
    return false;
  }
  const int pair = groups % 2 == 0 ? 2 : 1;
  Spec x, residual;
  if (!is_read_in_place(c.x, pair)) {
    c.x = laid_out(host, c.x, x);
  }
  if (c.residual) {
    c.residual = laid_out(host, *c.residual, residual);
  }
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  Problem p{};
  p.x = c.x.data;
  p.weight = c.weight.data;
  p.bias = c.bias ? c.bias->data : nullptr;
  p.residual = c.residual ? c.residual->data : nullptr;
  p.y = c.y.data;
  p.x_image = c.x.strides[0], p.x_row = number(c.x.strides[2]), p.x_column = number(c.x.strides[3]);
  p.channels = number(groups), p.height = number(c.x.sizes[2]), p.width = number(c.x.sizes[3]);
  p.out_height = number(c.y.sizes[2]), p.out_width = number(c.y.sizes[3]);
  p.kernel_height = number(c.weight.sizes[2]), p.kernel_width = number(c.weight.sizes[3]);
  p.stride_y = number(stride[0]), p.stride_x = number(stride[1]);
  p.top = number(padding[0]), p.left = number(padding[1]);
  p.dilation_y = number(dilation[0]), p.dilation_x = number(dilation[1]);
  p.act = {c.activation};
  p.residual_first = c.residual_first;
  dispatch(c.y.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) < 8) {
      pair == 2 ? launch<T, 2>(host, p, c.x.sizes[0]) : launch<T, 1>(host, p, c.x.sizes[0]);
    }
  });
  return true;
}

}  // namespace fuseconv::cuda
