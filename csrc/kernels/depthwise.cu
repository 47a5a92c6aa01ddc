// In a depthwise convolution, each element takes part in few operations. If each output were computed separately,
// loads, conversions and index computations would take as many instructions as the sums.
//
// A block copies the positions of x that it needs into shared memory, with zeros for the padding. A thread then
// computes kRows x kColumns positions of two channels: it reads each input row beneath these positions once, widens the
// row to f32, and adds its products to every row of the result that needs them. The threads of a warp are neighbors
// along the channels. Sums are in f32. On Hopper, 16-bit images have another kernel (depthwise_sm90.cuh).
//
// A block copies 16 bytes at a time, or 4 where the channels do not fill vectors of 16 bytes.
#include "kernels/depthwise.h"

#include <algorithm>

#include "arch/sm80.cuh"
#include "core/layout.h"
#include "core/shared_memory.h"
#include "kernels/depthwise_epilogue.cuh"
#include "kernels/implicit_gemm.h"

namespace fuseconv::cuda {
namespace {

constexpr int kRows = 2, kColumns = 7;  // positions per thread; image sizes of 7 times a power of 2 are common
constexpr int kPair = 2;                // channels per thread
constexpr int kLanes = 16;              // threads along the channels
constexpr int kThreads = 256;
constexpr int kMinBlocks = 4;  // blocks per SM: while some copy, others compute
constexpr int kMostColumns = 2;
constexpr size_t kSharedWithoutAsking = 48 << 10;
constexpr size_t kMostShared = 96 << 10;  // available on every GPU from sm_80 on

// Divides n by d. The quotient is exact if n d < 2^32.
struct Divisor {
  int divisor;
  unsigned reciprocal;  // 2^32 / divisor, rounded up; 0 for a divisor of 1

  explicit Divisor(int d)
      : divisor(d), reciprocal(static_cast<unsigned>(d == 1 ? 0 : ((int64_t{1} << 32) + d - 1) / d)) {}
  __device__ __forceinline__ int quotient(int n) const {
    return divisor == 1 ? n : static_cast<int>(__umulhi(static_cast<unsigned>(n), reciprocal));
  }
};

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  int height, width, out_height, out_width, channels, padding_h, padding_w;
  Divisor blocks;         // blocks across an image
  Divisor columns;        // columns of threads in a block
  int rows;               // rows of threads in a block
  Divisor copies;         // per position
  Divisor input_columns;  // columns of x that a block copies
  AnyActivation act;
  bool residual_first;
};

__host__ __device__ constexpr int inputs_of(int outputs, int kernel, int stride) {
  return (outputs - 1) * stride + kernel;
}

// Computes the epilogue of the thread's part of the result, which starts at `row` and `column`, and writes this part.
template <class T>
__device__ __forceinline__ void finish_tile(const Problem& p, float (&sums)[kRows * kColumns][kPair], int row,
                                            int column, int channel) {
  const int64_t place = ((int64_t{blockIdx.z} * p.out_height + row) * p.out_width + column) * p.channels + channel;
  finish<T>(p, sums, [&](auto visit) {
#pragma unroll
    for (int o = 0; o < kRows; ++o) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (row + o < p.out_height && column + i < p.out_width) {
          visit(place + int64_t{o * p.out_width + i} * p.channels, sums[o * kColumns + i]);
        }
      }
    }
  });
}

template <class T, int kKernel, int kStride, int kCopied>
__device__ __forceinline__ void compute(const Problem& p) {
  constexpr int kTaps = kKernel * kKernel;
  constexpr int kInputColumns = inputs_of(kColumns, kKernel, kStride);
  constexpr int kChannels = kLanes * kPair;
  extern __shared__ uint4 shared[];
  const int own = static_cast<int>(threadIdx.x), tile = static_cast<int>(threadIdx.y);
  const int thread = tile * kLanes + own, threads = static_cast<int>(blockDim.y) * kLanes;
  const int first = static_cast<int>(blockIdx.y) * kChannels, left_channels = p.channels - first;
  const int block_row = p.blocks.quotient(static_cast<int>(blockIdx.x));
  const int block_column = static_cast<int>(blockIdx.x) - block_row * p.blocks.divisor;
  const int first_row = block_row * p.rows * kRows, first_column = block_column * p.columns.divisor * kColumns;
  const int input_columns = p.input_columns.divisor;
  const int positions = inputs_of(p.rows * kRows, kKernel, kStride) * input_columns;
  T* const inputs = reinterpret_cast<T*>(shared);                                   // [rows, columns, kChannels]
  float* const weights = reinterpret_cast<float*>(inputs + positions * kChannels);  // [kTaps, kChannels]
  {
    const int top = first_row * kStride - p.padding_h, left = first_column * kStride - p.padding_w;
    const T* const image = static_cast<const T*>(p.x) + int64_t{blockIdx.z} * p.height * p.width * p.channels + first;
    const uint32_t to = arch::sm80::shared_address(inputs);
    for (int i = thread; i < positions * p.copies.divisor; i += threads) {
      const int position = p.copies.quotient(i), channel = (i - position * p.copies.divisor) * kCopied;
      const int row = p.input_columns.quotient(position);
      const int h = top + row, w = left + position - row * input_columns;
      const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(p.height) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(p.width) && channel < left_channels;
      const T* const from = image + (inside ? (h * p.width + w) * p.channels + channel : 0);
      arch::sm80::copy_async<kCopied * sizeof(T)>(to + static_cast<uint32_t>(i * kCopied * sizeof(T)), from, inside);
    }
    arch::sm80::copy_commit();
  }
  for (int i = thread; i < min(kChannels, left_channels) * kTaps; i += threads) {
    const int channel = i / kTaps, tap = i - channel * kTaps;
    weights[tap * kChannels + channel] = widen(static_cast<const T*>(p.weight)[first * kTaps + i]);
  }
  const int channel = first + kPair * own;
  float bias[kPair] = {};
  if (p.bias != nullptr && channel < p.channels) {
    bias[0] = widen(static_cast<const T*>(p.bias)[channel]);
    bias[1] = widen(static_cast<const T*>(p.bias)[channel + 1]);
  }
  const int tile_row = p.columns.quotient(tile), tile_column = tile - tile_row * p.columns.divisor;
  const int row = first_row + tile_row * kRows, column = first_column + tile_column * kColumns;
  arch::sm80::copy_wait<0>();
  __syncthreads();
  if (channel >= p.channels || row >= p.out_height || column >= p.out_width) {
    return;
  }
  float sums[kRows * kColumns][kPair];
#pragma unroll
  for (int i = 0; i < kRows * kColumns * kPair; ++i) {
    sums[i / kPair][i % kPair] = bias[i % kPair];
  }
  const T* line =
      inputs + (tile_row * kRows * input_columns + tile_column * kColumns) * kStride * kChannels + kPair * own;
#pragma unroll
  for (int r = 0; r < inputs_of(kRows, kKernel, kStride); ++r, line += input_columns * kChannels) {
    float wide[kInputColumns][kPair];
#pragma unroll
    for (int i = 0; i < kInputColumns; ++i) {
      widen_run(load_run<kPair>(line + i * kChannels), wide[i]);
    }
#pragma unroll
    for (int o = 0; o < kRows; ++o) {
      const int kh = r - o * kStride;
      if (kh >= 0 && kh < kKernel) {
#pragma unroll
        for (int kw = 0; kw < kKernel; ++kw) {
          const float2 factors =
              *reinterpret_cast<const float2*>(weights + (kh * kKernel + kw) * kChannels + kPair * own);
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            sums[o * kColumns + i][0] += wide[i * kStride + kw][0] * factors.x;
            sums[o * kColumns + i][1] += wide[i * kStride + kw][1] * factors.y;
          }
        }
      }
    }
  }
  finish_tile<T>(p, sums, row, column, channel);
}

// A block has kLanes threads along the channels and p.rows x p.columns tiles. The dims of the grid are the blocks of an
// image, the blocks along the channels, and the images.
template <class T, int kKernel, int kStride, int kCopied>
__global__ void __launch_bounds__(kThreads, kMinBlocks) depthwise_kernel(const Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (sizeof(T) != 2 || kCopied < kVectorSize<T>)  // depthwise_sm90 computes the others
#endif
  {
    compute<T, kKernel, kStride, kCopied>(p);
  }
}

int quotient_up(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }

// Returns the number of items per block if `count` items are spread evenly over the smallest number of blocks of at
// most `most` items.
int per_block(int count, int most) { return quotient_up(count, quotient_up(count, most)); }

template <class T>
size_t shared_bytes(int rows, int columns, int kernel, int stride) {
  const size_t positions = static_cast<size_t>(inputs_of(rows * kRows, kernel, stride)) *
                           static_cast<size_t>(inputs_of(columns * kColumns, kernel, stride));
  return kLanes * kPair * (sizeof(T) * positions + sizeof(float) * static_cast<size_t>(kernel * kernel));
}

template <class T, int kKernel, int kStride, int kCopied>
void launch(CudaHost& host, const Convolution& c) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const int channels = number(c.x.sizes[1]);
  const int across = quotient_up(c.y.sizes[3], kColumns), down = quotient_up(c.y.sizes[2], kRows);
  const int columns = per_block(across, kMostColumns);
  int rows = per_block(down, kThreads / kLanes / columns);
  while (rows > 1 && shared_bytes<T>(rows, columns, kKernel, kStride) > kMostShared) {
    --rows;
  }
  const int blocks_across = quotient_up(across, columns), blocks_down = quotient_up(down, rows);
  const int input_columns = inputs_of(columns * kColumns, kKernel, kStride);
  const Problem p{c.x.data,
                  c.weight.data,
                  c.bias ? c.bias->data : nullptr,
                  c.residual ? c.residual->data : nullptr,
                  c.y.data,
                  number(c.x.sizes[2]),
                  number(c.x.sizes[3]),
                  number(c.y.sizes[2]),
                  number(c.y.sizes[3]),
                  channels,
                  number(c.parameters.padding[0]),
                  number(c.parameters.padding[1]),
                  Divisor(blocks_across),
                  Divisor(columns),
                  rows,
                  Divisor(kLanes * kPair / kCopied),
                  Divisor(input_columns),
                  {c.activation},
                  c.residual_first};
  const dim3 block(kLanes, static_cast<unsigned>(rows * columns));
  const dim3 grid(static_cast<unsigned>(blocks_across * blocks_down),
                  static_cast<unsigned>(quotient_up(channels, kLanes * kPair)), static_cast<unsigned>(c.x.sizes[0]));
  const size_t shared = shared_bytes<T>(rows, columns, kKernel, kStride);
  if (shared > kSharedWithoutAsking) {
    allow_shared_memory(depthwise_kernel<T, kKernel, kStride, kCopied>, kMostShared);
  }
  depthwise_kernel<T, kKernel, kStride, kCopied><<<grid, block, shared, stream_of(host)>>>(p);
  check_launch("depthwise");
}

template <class T, int kKernel, int kCopied>
void launch(CudaHost& host, const Convolution& c) {
  return c.parameters.stride[0] == 1 ? launch<T, kKernel, 1, kCopied>(host, c)
                                     : launch<T, kKernel, 2, kCopied>(host, c);
}

template <class T, int kCopied>
void launch(CudaHost& host, const Convolution& c) {
  const int64_t kernel = c.weight.sizes[2];
  return kernel == 3   ? launch<T, 3, kCopied>(host, c)
         : kernel == 5 ? launch<T, 5, kCopied>(host, c)
                       : launch<T, 7, kCopied>(host, c);
}

bool is_dense_and_aligned(In tensor) { return fits_channels_last(tensor) && is_aligned(tensor.data); }

// Returns whether the sizes of a tensor are small enough for the grid, for 32-bit offsets within an image and for
// Divisor.
bool is_in_range(In tensor) {
  const int64_t across = (tensor.sizes[3] + kColumns - 1) / kColumns, down = (tensor.sizes[2] + kRows - 1) / kRows;
  return tensor.sizes[0] < (1 << 16) && tensor.sizes[1] / (kLanes * kPair) < (1 << 16) - 1 &&
         element_count(tensor) / tensor.sizes[0] < (int64_t{1} << 31) && across < (1 << 16) &&
         across * across * down < (int64_t{1} << 32);
}

}  // namespace

bool depthwise(CudaHost& host, const Convolution& given) {
  Convolution c = given;
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  if (c.x.rank != 4 || c.y.dtype == Dtype::f64 || transposed || groups == 1 || groups != c.x.sizes[1] ||
      c.weight.sizes[0] != groups || c.weight.sizes[1] != 1 || stride[0] != stride[1] || stride[0] > 2 ||
      dilation[0] != 1 || dilation[1] != 1) {
    return false;
  }
  const int64_t kernel = c.weight.sizes[2], vector = kVectorBytes / size_of(c.y.dtype);
  if (kernel != c.weight.sizes[3] || (kernel != 3 && kernel != 5 && kernel != 7) || groups % kPair != 0 ||
      !is_contiguous(c.weight) || !is_dense_and_aligned(c.y) || (c.residual && !is_dense_and_aligned(*c.residual)) ||
      (c.bias && c.bias->strides[0] != 1) || !is_in_range(c.x) || !is_in_range(c.y)) {
    return false;
  }
  Spec x;
  c.x = laid_out(host, c.x, x);
  const bool fills_vectors = groups % vector == 0;
  if (fills_vectors && depthwise_sm90(host, c)) {
    return true;
  }
  dispatch(c.y.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) < 8) {
      fills_vectors ? launch<T, kVectorSize<T>>(host, c) : launch<T, 4 / sizeof(T)>(host, c);
    }
  });
  return true;
}

}  // namespace fuseconv::cuda
