// A depthwise convolution moves few bytes per operation, and cuDNN's kernels reach a third of the bandwidth on it, or a
// thirtieth with a bias in the same call. Here a thread computes kWidth neighbors of a row for one vector of channels:
// the rows of x that it needs are read once each, the rows that several threads need come from the first-level cache,
// and weights wait in shared memory as f32. Sums are in f32.
#include "kernels/depthwise.h"

#include <algorithm>

#include "core/cuda.cuh"
#include "core/layout.h"

namespace fuseconv::cuda {
namespace {

constexpr int kWidth = 4;
constexpr int kThreads = 256;
constexpr int kMaxVectors = 16;  // vectors of channels per block

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  int height, width, out_height, out_width, channels, padding_h, padding_w;
  int vectors;  // per block
  AnyActivation act;
  bool residual_first;
};

template <class T, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads) depthwise_kernel(const Problem p) {
  constexpr int V = kVectorSize<T>;
  constexpr int kInputs = (kWidth - 1) * kStride + kKernel;
  extern __shared__ float weights[];  // [kKernel^2, channels of the block]
  const int channels = p.vectors * V;
  const int groups = p.channels / channels;
  const int image = static_cast<int>(blockIdx.z) / groups;
  const int first_channel = static_cast<int>(blockIdx.z) % groups * channels;
  const int thread = static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  const T* const weight = static_cast<const T*>(p.weight) + int64_t{first_channel} * kKernel * kKernel;
  for (int i = thread; i < channels * kKernel * kKernel; i += threads) {
    weights[i % (kKernel * kKernel) * channels + i / (kKernel * kKernel)] = widen(weight[i]);
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x) * V;
  const int channel = first_channel + own;
  const int row = static_cast<int>(blockIdx.y * blockDim.z + threadIdx.z);
  const int column = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y) * kWidth;
  if (row >= p.out_height || column >= p.out_width) {
    return;
  }
  float sums[kWidth][V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float start = p.bias == nullptr ? 0.0f : widen(static_cast<const T*>(p.bias)[channel + v]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sums[i][v] = start;
    }
  }
  const int top = row * kStride - p.padding_h, left = column * kStride - p.padding_w;
#pragma unroll 1
  for (int kh = 0; kh < kKernel; ++kh) {
    const int h = top + kh;
    if (h < 0 || h >= p.height) {
      continue;
    }
    const T* const line =
        static_cast<const T*>(p.x) + ((int64_t{image} * p.height + h) * p.width) * p.channels + channel;
    Vector<T, V> inputs[kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int w = left + i;
      inputs[i] = w >= 0 && w < p.width ? *reinterpret_cast<const Vector<T, V>*>(line + int64_t{w} * p.channels)
                                        : Vector<T, V>{};
    }
#pragma unroll
    for (int kw = 0; kw < kKernel; ++kw) {
      const float* const factors = weights + (kh * kKernel + kw) * channels + own;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float factor = factors[v];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          sums[i][v] += widen(inputs[i * kStride + kw].values[v]) * factor;
        }
      }
    }
  }
  const int64_t place = ((int64_t{image} * p.out_height + row) * p.out_width + column) * p.channels + channel;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (column + i < p.out_width) {
      const int64_t at = place + int64_t{i} * p.channels;
      Vector<T, V> addend{};
      if (p.residual != nullptr) {
        addend = *reinterpret_cast<const Vector<T, V>*>(static_cast<const T*>(p.residual) + at);
      }
      Vector<T, V> result;
      dispatch(p.act.activation, [&](auto act) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float added = widen(addend.values[v]);
          const float value = sums[i][v];
          result.values[v] = narrow<T>(p.residual == nullptr ? act(value)
                                       : p.residual_first    ? act(value + added)
                                                             : act(value) + added);
        }
      });
      *reinterpret_cast<Vector<T, V>*>(static_cast<T*>(p.y) + at) = result;
    }
  }
}

template <class T, int kKernel, int kStride>
void launch(CudaHost& host, const Problem& p, int images) {
  constexpr int V = kVectorSize<T>;
  const auto over = [](int count, int each) { return static_cast<unsigned>((count + each - 1) / each); };
  const int tiles = static_cast<int>(over(p.out_width, kWidth));
  const int across = std::clamp(kThreads / p.vectors, 1, std::min(tiles, 8));
  const int down = std::clamp(kThreads / (p.vectors * across), 1, std::min(p.out_height, 64));
  const dim3 block(static_cast<unsigned>(p.vectors), static_cast<unsigned>(across), static_cast<unsigned>(down));
  const dim3 grid(over(tiles, across), over(p.out_height, down),
                  static_cast<unsigned>(images * (p.channels / (p.vectors * V))));
  const size_t shared = sizeof(float) * static_cast<size_t>(kKernel * kKernel * p.vectors * V);
  depthwise_kernel<T, kKernel, kStride><<<grid, block, shared, stream_of(host)>>>(p);
  check_launch("depthwise");
}

template <class T, int kKernel>
void launch(CudaHost& host, const Problem& p, int images, int64_t stride) {
  return stride == 1 ? launch<T, kKernel, 1>(host, p, images) : launch<T, kKernel, 2>(host, p, images);
}

template <class T>
void launch(CudaHost& host, const Problem& p, int images, int64_t kernel, int64_t stride) {
  return kernel == 3   ? launch<T, 3>(host, p, images, stride)
         : kernel == 5 ? launch<T, 5>(host, p, images, stride)
                       : launch<T, 7>(host, p, images, stride);
}

// The most vectors of channels, up to kMaxVectors, whose number divides that of all.
int vectors_per_block(int64_t vectors) {
  int most = 1;
  for (int count = 2; count <= kMaxVectors; ++count) {
    most = vectors % count == 0 ? count : most;
  }
  return most;
}

bool is_dense_and_aligned(In tensor) { return fits_channels_last(tensor) && is_aligned(tensor.data); }

}  // namespace

bool depthwise(CudaHost& host, const Convolution& c) {
  const auto& [stride, padding, dilation, transposed, more, groups] = c.parameters;
  if (c.x.rank != 4 || c.y.dtype == Dtype::f64 || transposed || groups == 1 || groups != c.x.sizes[1] ||
      c.weight.sizes[0] != groups || c.weight.sizes[1] != 1 || stride[0] != stride[1] || stride[0] > 2 ||
      dilation[0] != 1 || dilation[1] != 1) {
    return false;
  }
  const int64_t kernel = c.weight.sizes[2], vector = kVectorBytes / size_of(c.y.dtype);
  const In weight = c.weight;
  if (kernel != weight.sizes[3] || (kernel != 3 && kernel != 5 && kernel != 7) || groups % vector != 0 ||
      !is_contiguous(weight) || !is_dense_and_aligned(c.x) || !is_dense_and_aligned(c.y) ||
      (c.residual && !is_dense_and_aligned(*c.residual)) || (c.bias && c.bias->strides[0] != 1)) {
    return false;
  }
  const int64_t vectors = groups / vector;
  const int per_block = vectors_per_block(vectors);
  if (c.x.sizes[0] * (vectors / per_block) > 65535 || c.y.sizes[2] > 65535 ||
      std::max(element_count(c.x), element_count(c.y)) / c.x.sizes[0] >= (int64_t{1} << 31)) {
    return false;
  }
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const Problem p{c.x.data,
                  weight.data,
                  c.bias ? c.bias->data : nullptr,
                  c.residual ? c.residual->data : nullptr,
                  c.y.data,
                  number(c.x.sizes[2]),
                  number(c.x.sizes[3]),
                  number(c.y.sizes[2]),
                  number(c.y.sizes[3]),
                  number(groups),
                  number(padding[0]),
                  number(padding[1]),
                  per_block,
                  {c.activation},
                  c.residual_first};
  dispatch(c.y.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) < 8) {
      launch<T>(host, p, number(c.x.sizes[0]), kernel, stride[0]);
    }
  });
  return true;
}

}  // namespace fuseconv::cuda
