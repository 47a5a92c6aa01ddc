// The kernel of few_channels.cu.
//
// A convolution of few channels moves much memory and multiplies little. A block copies the part of an image that it
// needs to shared memory once and computes 256 pixels of the result from it.
//
// The products run on Tensor Cores, as a matrix product whose depth is the positions of the convolution's kernel with
// their channels. A fragment of the left operand is read directly from the pixels in shared memory: a register of it
// holds one channel of a pixel or, in 16 bits, two of four channels. The weight is stored in shared memory in the order
// of its fragments, and stays there while the block computes one tile of the result after another. Products of f32 are
// three products of TF32 (arch/tf32.cuh), because PyTorch computes these convolutions in f32.
#pragma once

#include "arch/sm80.cuh"
#include "arch/tf32.cuh"
#include "core/coarse.cuh"
#include "core/cuda.cuh"
#include "kernels/run.cuh"

namespace fuseconv::cuda::few {

inline constexpr int kMostChannels = 4;
inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kRows = 16;     // pixels of the result per product
inline constexpr int kProducts = 2;  // per warp, side by side
inline constexpr int kDepth = 8;     // words of 32 bits per product along the depth

template <class T>
inline constexpr int kElements = sizeof(uint32_t) / sizeof(T);  // per word

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

// Returns the number of words of a pixel in shared memory. In 16 bits, all pixels have four channels.
template <class T>
__host__ __device__ constexpr int words_of(int channels) {
  return sizeof(T) == 2 ? kMostChannels / kElements<T> : channels;
}

// While one block copies, another computes.
__host__ __device__ constexpr int blocks_per_sm(int columns) { return (columns > 32 ? 16 : 24) / kWarps; }

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  int64_t x_image, x_channel, x_row, x_column;
  int64_t weight_out, weight_channel, weight_row, weight_column;
  int channels, height, width, out_channels, out_height, out_width;
  int kernel_height, kernel_width, stride_y, stride_x, top, left, dilation_y, dilation_x;
  int words;         // per pixel
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
  int* places;       // [steps][kDepth]; where a word is, from the first pixel of a window on; negative for none
  float* bias;       // [kColumns]
  float* results;    // [kWarps][kRows][kRowFloats]
  uint32_t* pixels;  // [part_height][part_width][words]

  __host__ __device__ static size_t bytes(int steps, int64_t pixel_words) {
    const size_t weights = static_cast<size_t>(steps) * kColumns / 8 * 32 * sizeof(uint2);
    const size_t places = static_cast<size_t>(steps) * kDepth * sizeof(int);
    return weights + places + sizeof(float) * kColumns + sizeof(float) * kWarps * kRows * kRowFloats +
           static_cast<size_t>(pixel_words) * sizeof(uint32_t);
  }

  __device__ Layout(void* shared, int steps) : weight(static_cast<uint2*>(shared)) {
    places = reinterpret_cast<int*>(weight + steps * kColumns / 8 * 32);
    bias = reinterpret_cast<float*>(places + steps * kDepth);
    results = bias + kColumns;
    pixels = reinterpret_cast<uint32_t*>(results + kWarps * kRows * kRowFloats);
  }
};

// Returns an element of the weight as bits, or zero where there is none.
template <class T>
__device__ __forceinline__ uint32_t weight_bits(const Problem& p, int out, int position, int channel) {
  if (out >= p.out_channels || position >= p.kernel_height * p.kernel_width || channel >= p.channels) {
    return 0;
  }
  const Bits<T>* const weight = static_cast<const Bits<T>*>(p.weight);
  const int y = position / p.kernel_width, x = position % p.kernel_width;
  return weight[out * p.weight_out + channel * p.weight_channel + y * p.weight_row + x * p.weight_column];
}

template <class T, int kColumns>
__device__ __forceinline__ void load_weight(const Problem& p, const Layout<kColumns>& shared, int first) {
  for (int i = threadIdx.x; i < p.steps * kColumns / 8 * 32; i += kThreads) {
    const int lane = i % 32, tile = i / 32 % (kColumns / 8), step = i / 32 / (kColumns / 8);
    uint32_t words[2] = {};
    for (int element = 0; element < 2 * kElements<T>; ++element) {
      const int half = element / kElements<T>, within = element % kElements<T>;
      const int word = step * kDepth + half * (kDepth / 2) + lane % 4;
      const int channel = word % p.words * kElements<T> + within;
      words[half] |= weight_bits<T>(p, first + tile * 8 + lane / 4, word / p.words, channel) << 16 * within;
    }
    shared.weight[i] = {words[0], words[1]};
  }
  for (int i = threadIdx.x; i < p.steps * kDepth; i += kThreads) {
    const int position = i / p.words, y = position / p.kernel_width, x = position % p.kernel_width;
    const int pixel = y * p.dilation_y * p.part_width + x * p.dilation_x;
    shared.places[i] = y < p.kernel_height ? pixel * p.words + i % p.words : -1;
  }
  for (int i = threadIdx.x; i < kColumns; i += kThreads) {
    const bool has_bias = p.bias != nullptr && first + i < p.out_channels;
    shared.bias[i] = has_bias ? widen(static_cast<const T*>(p.bias)[first + i]) : 0.0f;
  }
}

// Copies the pixels from (top, left) on. Pixels outside the image, and channels that it does not have, become zeros.
template <class T>
__device__ __forceinline__ void load_pixels(const Problem& p, uint32_t* pixels, int image, int top, int left) {
  const Bits<T>* const from = static_cast<const Bits<T>*>(p.x) + image * p.x_image;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.part_height * p.part_width; i += kThreads) {
    const int row = static_cast<int>(__umulhi(static_cast<unsigned>(i), p.part_width_inverse)), y = top + row,
              x = left + i - row * p.part_width;
    uint32_t values[kMostChannels] = {};
    if (static_cast<unsigned>(y) < static_cast<unsigned>(p.height) &&
        static_cast<unsigned>(x) < static_cast<unsigned>(p.width)) {
#pragma unroll
      for (int c = 0; c < kMostChannels; ++c) {
        if (c < p.channels) {
          values[c] = __ldg(from + y * p.x_row + x * p.x_column + c * p.x_channel);
        }
      }
    }
    if constexpr (sizeof(T) == 2) {
      reinterpret_cast<uint2*>(pixels)[i] = {values[0] | values[1] << 16, values[2] | values[3] << 16};
    } else {
#pragma unroll
      for (int c = 0; c < kMostChannels; ++c) {
        if (c < p.channels) {
          pixels[i * p.words + c] = values[c];
        }
      }
    }
  }
}

// d[16, 8] += a[16, depth] b[8, depth]^T, with fragments of one product.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
  if constexpr (sizeof(T) == 2) {
    arch::sm80::multiply(d, a, b.x, b.y, T());
  } else {
    uint32_t a1[4], a2[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a1[i] = arch::tf32::first_part(__uint_as_float(a[i]));
      a2[i] = arch::tf32::second_part(__uint_as_float(a[i]), a1[i]);
    }
    const uint32_t b1[2] = {arch::tf32::first_part(__uint_as_float(b.x)), arch::tf32::first_part(__uint_as_float(b.y))};
    const uint32_t b2[2] = {arch::tf32::second_part(__uint_as_float(b.x), b1[0]),
                            arch::tf32::second_part(__uint_as_float(b.y), b1[1])};
    float sums[4] = {};
    arch::sm80::multiply_tf32(sums, a2, b1[0], b1[1]);
    arch::sm80::multiply_tf32(sums, a1, b2[0], b2[1]);
    arch::sm80::multiply_tf32(sums, a1, b1[0], b1[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] += sums[i];
    }
  }
}

// Recomputes, product by product, the sums that are not finite. `pixel` is the first of the window of one pixel of the
// result, and the sums are those of the channels from `channel` on.
template <int kCount>
__device__ __forceinline__ void settle(const Problem& p, const float* pixel, const float* bias, int channel,
                                       float (&sums)[kCount]) {
  bool is_finite = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    is_finite = is_finite && isfinite(sums[i]);
  }
  if (is_finite) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float sum = 0.0f;
#pragma unroll 1
    for (int at = 0; at < p.kernel_height * p.kernel_width * p.channels; ++at) {
      const int position = at / p.channels, c = at % p.channels, y = position / p.kernel_width,
                x = position % p.kernel_width;
      const uint32_t weight = weight_bits<float>(p, channel + i, position, c);
      sum =
          fmaf(pixel[(y * p.dilation_y * p.part_width + x * p.dilation_x) * p.words + c], __uint_as_float(weight), sum);
    }
    sums[i] = sum + bias[i];
  }
}

// Computes the epilogue of adjacent channels of one pixel, and writes them.
template <class T>
__device__ __forceinline__ void finish(const Problem& p, float (&values)[kVectorSize<T>], int64_t place) {
  float addend[kVectorSize<T>] = {};
  if (p.residual != nullptr) {
    widen_run(load_run(static_cast<const T*>(p.residual) + place), addend);
  }
  const bool before = p.residual != nullptr && p.residual_first, after = p.residual != nullptr && !p.residual_first;
  dispatch(p.act.activation, [&](auto act) {
#pragma unroll
    for (int i = 0; i < kVectorSize<T>; ++i) {
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
  constexpr int kTiles = kColumns / 8, kRun = kVectorSize<T>, kRuns = kColumns / kRun;
  extern __shared__ uint4 memory[];
  const Layout<kColumns> shared(memory, p.steps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int words = sizeof(T) == 2 ? words_of<T>(0) : p.words;  // known to the compiler in 16 bits
  const int first = blockIdx.y * kColumns;
  float* const results = shared.results + warp * kRows * shared.kRowFloats;
  load_weight<T>(p, shared, first);
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int line = tile / p.tiles_across, image = line / p.tiles_down;
    const int tile_row = (line - image * p.tiles_down) * p.down;
    const int tile_column = (tile - line * p.tiles_across) * p.across * kRows;
    __syncthreads();  // the pixels of the tile before are no longer read
    load_pixels<T>(p, shared.pixels, image, tile_row * p.stride_y - p.top, tile_column * p.stride_x - p.left);
    __syncthreads();
    const uint32_t* from[kProducts][2];  // this thread's two rows: the first pixels of their windows
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      const int product = warp * kProducts + m, row = product / p.across;
      const int column = (product - row * p.across) * kRows + lane / 4;
      const int pixel = row * p.stride_y * p.part_width + column * p.stride_x;
      from[m][0] = shared.pixels + pixel * words;
      from[m][1] = from[m][0] + 8 * p.stride_x * words;
    }
    float d[kProducts][kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[0][n][i] = d[1][n][i] = shared.bias[n * 8 + lane % 4 * 2 + i % 2];
      }
    }
#pragma unroll(sizeof(T) == 2 ? 2 : 1)
    for (int step = 0; step < p.steps; ++step) {
      uint32_t a[kProducts][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = shared.places[step * kDepth + half * (kDepth / 2) + lane % 4];
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          a[m][half * 2] = place < 0 ? 0 : from[m][0][place];
          a[m][half * 2 + 1] = place < 0 ? 0 : from[m][1][place];
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint2 b = shared.weight[(step * kTiles + n) * 32 + lane];
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          multiply<T>(d[m][n], a[m], b);
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
      for (int i = lane; i < kRows * kRuns; i += 32) {
        const int pixel = i / kRuns, channel = i % kRuns * kRun;
        if (row < p.out_height && column + pixel < p.out_width && first + channel < p.out_channels) {
          const int64_t place = (int64_t{image} * p.out_height + row) * p.out_width + column + pixel;
          float values[kRun];
#pragma unroll
          for (int k = 0; k < kRun; ++k) {
            values[k] = results[pixel * shared.kRowFloats + channel + k];
          }
          if constexpr (sizeof(T) == 4) {
            const int from = product_row * p.stride_y * p.part_width + (column - tile_column + pixel) * p.stride_x;
            settle(p, reinterpret_cast<const float*>(shared.pixels + from * words), shared.bias + channel,
                   first + channel, values);
          }
          finish<T>(p, values, place * p.out_channels + first + channel);
        }
      }
    }
  }
}

}  // namespace fuseconv::cuda::few
