// A depthwise convolution of 16-bit images on Hopper.
//
// The sums are matrix products with diagonal matrices. A product multiplies 16 positions of 8 channels by an 8x8 matrix
// that has the channels' weights for one position of the filter on its diagonal, and zeros elsewhere. Seven eighths of
// the multiplications are by zero; still this is faster than f32 arithmetic, because x is not widened, and because one
// instruction does the work of several. A product would spread NaN and infinity from a channel to its neighbors: 0 *
// inf is NaN. Therefore, a thread that finds a sum that is not finite computes its sums again without the matrices.
//
// TMA loads the pixels beneath a tile of the result, with zeros for the padding, the next tile's while a block computes
// one. A warp computes eight channels of 32 columns of kRows outputs each, and reads each row of pixels beneath them
// once. TMA also stores the result.
#pragma once

#include <cmath>

#include "arch/sm90.cuh"
#include "core/activation.h"
#include "core/cuda.cuh"
#include "gemm/activation.cuh"
#include "kernels/index.cuh"
#include "kernels/run.cuh"

namespace fuseconv::cuda::diagonal {

namespace sm80 = arch::sm80;
namespace sm90 = arch::sm90;

constexpr int kRows = 4;         // outputs per column
constexpr int kGroup = 8;        // channels of a warp
constexpr int kChannels = 32;    // of a block
constexpr int kPixelBytes = 64;  // the channels of a pixel
constexpr int kColumns = 32;     // of a warp, and of a block
constexpr int kThreads = kChannels / kGroup * 32;
constexpr int kStages = 2;
constexpr int kAlignment = 1024;  // of a box in shared memory
constexpr int kResultBytes = kColumns * kRows * kPixelBytes;

// Columns are numbered first along a row of the box, then down the box in steps of kRows, then from image to image.
struct Problem {
  CUtensorMap x_map, y_map;
  const void *x, *weight, *bias, *residual;
  int height, width, channels, out_height, out_width, count;  // count is the number of images
  int top, left;
  int columns;  // of a box; those along each dim:
  Divisor<uint32_t> across, down;
  int deep;
  Divisor<uint32_t> tiles_across, tiles_down;
  int tiles;
  int box_height, box_width, box_bytes;
  Activation activation;
  bool residual_first;
};

// Divides and returns the quotient; `number` becomes the remainder.
__device__ __forceinline__ int split(const Divisor<uint32_t>& by, int& number) {
  const int quotient = static_cast<int>(by.quotient(static_cast<uint32_t>(number)));
  number -= quotient * static_cast<int>(by.divisor);
  return quotient;
}

struct Position {
  int x, y, image;
};

// The first output of a column of a box.
__device__ __forceinline__ Position column_of(const Problem& p, int number) {
  int line = split(p.across, number);
  const int image = split(p.down, line);
  return {number, line * kRows, image};
}

// The first output of a tile: the columns of a box.
__device__ __forceinline__ Position tile_of(const Problem& p, int tile) {
  int line = split(p.tiles_across, tile);
  const int image = split(p.tiles_down, line);
  return {tile * static_cast<int>(p.across.divisor), line * static_cast<int>(p.down.divisor) * kRows, image * p.deep};
}

// The sizes of images.
struct Images {
  int height, width, channels, count;

  __device__ __forceinline__ bool has(const Position& at) const {
    return static_cast<unsigned>(at.y) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(at.x) < static_cast<unsigned>(width) && at.image < count;
  }
  __device__ __forceinline__ int64_t offset(const Position& at, int channel) const {
    return ((int64_t{at.image} * height + at.y) * width + at.x) * channels + channel;
  }
};

// The weights of one channel: two positions of a row of the filter per word.
template <int kKernel>
struct Filter {
  static constexpr int kWords = (kKernel + 1) / 2;
  uint32_t words[kKernel][kWords];

  __device__ __forceinline__ Filter(const void* weight, int channel, int channels) {
    const uint16_t* const from = static_cast<const uint16_t*>(weight) + int64_t{channel} * kKernel * kKernel;
#pragma unroll
    for (int y = 0; y < kKernel; ++y) {
#pragma unroll
      for (int x = 0; x < kKernel; x += 2) {
        const uint32_t low = channel < channels ? from[y * kKernel + x] : 0;
        const uint32_t high = channel < channels && x + 1 < kKernel ? from[y * kKernel + x + 1] : 0;
        words[y][x / 2] = low | high << 16;
      }
    }
  }
};

// Selects the lane's elements of a diagonal matrix. A lane holds two elements of a column, of which at most one is on
// the diagonal.
struct Diagonal {
  uint32_t low, high;

  __device__ __forceinline__ explicit Diagonal(int lane) {
    const bool has = lane / 8 == lane % 4, second = lane / 4 % 2 == 1;
    low = !has ? 0x4444 : second ? 0x1044 : 0x4410;
    high = !has ? 0x4444 : second ? 0x3244 : 0x4432;
  }
  // For the first and for the second position of a word.
  __device__ __forceinline__ uint32_t first(uint32_t word) const { return __byte_perm(word, 0, low); }
  __device__ __forceinline__ uint32_t second(uint32_t word) const { return __byte_perm(word, 0, high); }
};

// Where TMA puts 16 bytes of a box: eight adjacent pixels have the same channels in different banks.
__device__ __forceinline__ uint32_t swizzled(uint32_t at) { return at ^ (at >> 3 & 0x30); }

// The sums of a lane: for both products of 16 columns, the columns lane / 4 and lane / 4 + 8, and two channels of each.
using Sums = float[kRows][2][2][2];

// Computes the sums of one column and two channels without Tensor Cores. Like torch, leaves out the padding, so that an
// infinite weight gives NaN only where x is 0.
template <class T, int kKernel, int kStride>
__device__ __noinline__ void sum_again(const Problem& p, Position at, int channel, float2 bias, float2* sums) {
  const Images images{p.height, p.width, p.channels, p.count};
  const T* const weight = static_cast<const T*>(p.weight) + int64_t{channel} * kKernel * kKernel;
  for (int o = 0; o < kRows; ++o) {
    sums[o] = bias;
    for (int tap = 0; tap < kKernel * kKernel; ++tap) {
      const Position pixel{at.x * kStride - p.left + tap % kKernel, (at.y + o) * kStride - p.top + tap / kKernel,
                           at.image};
      if (channel < p.channels && images.has(pixel)) {
        float values[2];
        widen_run(load_run<2>(static_cast<const T*>(p.x) + images.offset(pixel, channel)), values);
        sums[o].x += values[0] * widen(weight[tap]);
        sums[o].y += values[1] * widen(weight[kKernel * kKernel + tap]);
      }
    }
  }
}

// Shared memory: the result, kStages boxes, and their barriers.
template <class T, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads, kKernel == 3 ? 5 : 3)
    depthwise_sm90_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kInputs = (kRows - 1) * kStride + kKernel;  // rows of pixels beneath a column
  extern __shared__ uint8_t memory[];
  const uint32_t unaligned = sm90::shared_address(memory);
  const uint32_t result = unaligned + (kAlignment - unaligned % kAlignment) % kAlignment;
  const uint32_t boxes = result + kResultBytes, barriers = boxes + kStages * p.box_bytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int block_channel = static_cast<int>(blockIdx.x) * kChannels, group_channel = block_channel + warp * kGroup;
  const int channel = group_channel + lane % 4 * 2;  // and the next
  const bool leads = thread == 0;
  if (leads) {
    for (int stage = 0; stage < kStages; ++stage) {
      sm90::barrier_init(barriers + stage * 8, 1);
    }
    sm90::barrier_init_fence();
  }
  __syncthreads();
  sm90::wait_for_previous_grid();
  sm90::launch_dependent_grids();
  const auto load = [&](int tile, int stage) {
    const uint32_t barrier = barriers + stage * 8;
    const Position first = tile_of(p, tile);
    sm90::barrier_expect(barrier, p.box_height * p.box_width * p.deep * kPixelBytes);
    sm90::load_images(boxes + stage * p.box_bytes, p.x_map, block_channel,
                      {first.x * kStride - p.left, first.y * kStride - p.top, first.image}, barrier);
  };
  int tile = static_cast<int>(blockIdx.y);
  if (leads) {
    load(tile, 0);
  }
  const Filter<kKernel> filter(p.weight, group_channel + lane / 4, p.channels);
  const Diagonal diagonal(lane);
  float2 bias = {};
  if (p.bias != nullptr && channel < p.channels) {
    bias = {widen(static_cast<const T*>(p.bias)[channel]), widen(static_cast<const T*>(p.bias)[channel + 1])};
  }
  // Of the two products of 16 columns, lane l reads the pixels beneath the columns l % 16 and l % 16 + 16: lanes 0 to
  // 15 those of a position of the filter, the others those of the next. Lane l writes column l.
  const int row_bytes = p.box_width * kPixelBytes, group_bytes = warp * kGroup * static_cast<int>(sizeof(T));
  const auto own_column = [&](int number) { return column_of(p, min(number, p.columns - 1)); };
  uint32_t pixels[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const Position c = own_column(m * 16 + lane % 16);
    pixels[m] = ((c.image * p.box_height + c.y * kStride) * p.box_width + c.x * kStride + lane / 16) * kPixelBytes +
                group_bytes;
  }
  const int result_row_bytes = static_cast<int>(p.across.divisor) * kPixelBytes;
  const Position own = own_column(lane);
  const uint32_t written = result + (own.image * static_cast<int>(p.down.divisor) * kRows + own.y) * result_row_bytes +
                           own.x * kPixelBytes + group_bytes;
  for (int round = 0; tile < p.tiles; ++round, tile += static_cast<int>(gridDim.y)) {
    const int stage = round % kStages, next = tile + static_cast<int>(gridDim.y);
    if (leads && next < p.tiles) {
      load(next, (round + 1) % kStages);
    }
    const Position first = tile_of(p, tile);
    Sums sums;
#pragma unroll
    for (int i = 0; i < kRows * 8; ++i) {
      sums[i / 8][i / 4 % 2][i / 2 % 2][i % 2] = i % 2 == 0 ? bias.x : bias.y;
    }
    sm90::barrier_wait(barriers + stage * 8, round / kStages % 2);
    const uint32_t box = boxes + stage * p.box_bytes;
#pragma unroll
    for (int r = 0; r < kInputs; ++r) {
#pragma unroll
      for (int x = 0; x < kKernel; x += 2) {
        const bool both = x + 1 < kKernel;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t at = swizzled(box + pixels[m] + r * row_bytes + x * kPixelBytes);
          uint32_t two[4], one[2];
          both ? sm80::load_matrices(two, at) : sm80::load_matrices(one, at);
#pragma unroll
          for (int o = 0; o < kRows; ++o) {
            const int y = r - o * kStride;
            if (y >= 0 && y < kKernel) {
              const uint32_t weight = filter.words[y][x / 2];
              float (&d)[4] = reinterpret_cast<float (&)[4]>(sums[o][m]);
              if (both) {
                sm80::multiply(d, two, diagonal.first(weight), diagonal.second(weight), T());
              } else {
                sm80::multiply(d, one, diagonal.first(weight), T());
              }
            }
          }
        }
      }
    }
    float zeros[kRows] = {};  // or NaN
#pragma unroll
    for (int i = 0; i < kRows * 8; ++i) {
      zeros[i / 8] += 0.0f * sums[i / 8][i / 4 % 2][i / 2 % 2][i % 2];
    }
    const bool is_finite = (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]) == 0.0f;
    // Calls visit(position, sums, number) for the four columns of this lane.
    const auto each_column = [&](auto visit) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Position c = own_column(i * 8 + lane / 4);
        visit(Position{first.x + c.x, first.y + c.y, first.image + c.image}, i);
      }
    };
    if (!is_finite) {
      each_column([&](const Position& at, int i) {
        float2 again[kRows];
        sum_again<T, kKernel, kStride>(p, at, channel, bias, again);
#pragma unroll
        for (int o = 0; o < kRows; ++o) {
          sums[o][i / 2][i % 2][0] = again[o].x;
          sums[o][i / 2][i % 2][1] = again[o].y;
        }
      });
    }
    const auto add_residual = [&] {
      const Images images{p.out_height, p.out_width, p.channels, p.count};
      each_column([&](Position at, int i) {
#pragma unroll
        for (int o = 0; o < kRows; ++o, ++at.y) {
          if (images.has(at) && channel < p.channels) {
            float addend[2];
            widen_run(load_run<2>(static_cast<const T*>(p.residual) + images.offset(at, channel)), addend);
            sums[o][i / 2][i % 2][0] += addend[0];
            sums[o][i / 2][i % 2][1] += addend[1];
          }
        }
      });
    };
    if (p.residual != nullptr && p.residual_first) {
      add_residual();
    }
    with_constant(p.activation.name, [&]<Activation::Name name>(Constant<name>) {
      const auto act = linear::epilogue_of<name>(p.activation);
#pragma unroll
      for (int i = 0; i < kRows * 8; ++i) {
        float& value = sums[i / 8][i / 4 % 2][i / 2 % 2][i % 2];
        value = act.apply(value * act.kScale);
      }
    });
    if (p.residual != nullptr && !p.residual_first) {
      add_residual();
    }
    if (leads) {
      sm90::store_wait<0>();
    }
    __syncthreads();  // the result before has been stored
#pragma unroll
    for (int o = 0; o < kRows; ++o) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = narrow_run<T>(sums[o][i / 2][i % 2]).words[0];
      }
      sm90::store_matrices(swizzled(written + o * result_row_bytes), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    sm90::shared_fence();
    __syncthreads();  // the result is complete, and the box has been read
    if (leads) {
      sm90::store_images(p.y_map, result, block_channel, {first.x, first.y, first.image});
    }
  }
  if (leads) {
    sm90::store_wait<0>();
  }
#endif
}

}  // namespace fuseconv::cuda::diagonal
