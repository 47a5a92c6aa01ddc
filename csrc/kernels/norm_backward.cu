// The gradients of kernels/norm_backward.h on CUDA.
//
// A block iterates over rows in grid-stride order and accumulates column sums, which stay in registers if its rows do.
// The block writes its sums to a scratch buffer, and a second kernel adds the sums of all blocks.
#include "kernels/norm_backward.h"

#include "kernels/moments.cuh"

namespace fuseconv::cuda {
namespace {

template <class T>
struct GradientArguments {
  Loop rows;  // operands: grad_x, grad, x, grad_sum
  int64_t row_count;
  int64_t columns;
  int64_t column_strides[4];
  int64_t weight_stride;
  T* grad_x;
  const T* grad;
  const T* x;
  const T* grad_sum;  // grad_sum, weight and partial may be null
  const T* weight;
  Compute<T>* partial;  // [blocks, 2, columns]: sums for the weight and for the bias
  RowNorm<T> norm;
  bool streaming;
};

// Adds the sums of the groups of a block, one group after another, and writes them to `partial`.
template <class A, int Threads, int Chunks, int Size>
__device__ __forceinline__ void write_sums(const A (&weight_sum)[Chunks][Size], const A (&bias_sum)[Chunks][Size],
                                           A* partial, int lane, int columns) {
  constexpr int kGroups = kRowsPerBlock<Threads>;
  for (int group = 0; group < kGroups; ++group) {
    if (threadIdx.x / Threads == group) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        const int column = (chunk * Threads + lane) * Size;
        if (column < columns) {
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            A* const weight = partial + column + i;
            A* const bias = weight + columns;
            *weight = group == 0 ? weight_sum[chunk][i] : *weight + weight_sum[chunk][i];
            *bias = group == 0 ? bias_sum[chunk][i] : *bias + bias_sum[chunk][i];
          }
        }
      }
    }
    if (kGroups > 1) {
      __syncthreads();
    }
  }
}

template <class T, int Threads, int Chunks>
__global__ void __launch_bounds__(kRowBlock<Threads>,
                                  kResidentBlocks<Threads, 4 * Chunks * kVectorSize<T> * sizeof(Compute<T>)>)
    gradients_in_registers(const __grid_constant__ GradientArguments<T> a) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  const int lane = threadIdx.x % Threads;
  const int columns = static_cast<int>(a.columns);
  Group<Threads> group;
  A weight_sum[Chunks][kSize] = {};
  A bias_sum[Chunks][kSize] = {};
  // Because the sums occupy most registers, only a few rows are in flight. Therefore the next rows are loaded while the
  // current rows are computed. Past the last row, the gradient is 0.
  Run<T> next_x[Chunks], next_grad[Chunks];
  const auto fetch = [&](int64_t index) {
    int64_t offsets[4];
    row_offsets(a.rows, min(index, a.row_count - 1), offsets);
    fetch_row<T, Threads>(a.x + offsets[2], next_x, lane, columns, A(0));
    fetch_row<T, Threads>(a.grad + offsets[1], next_grad, lane, index < a.row_count ? columns : 0, A(0));
  };
  constexpr int kRows = kRowsPerBlock<Threads>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRows;
  fetch(static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / Threads);
  for_each_row<Threads>(a.row_count, [&](int64_t index, bool active) {
    int64_t offsets[4];
    row_offsets(a.rows, index, offsets);
    A n[Chunks][kSize], h[Chunks][kSize];
    const A first = sizeof(T) == 2 ? widen(a.x[offsets[2]]) : A(0);
    widen_row(next_x, n);
    widen_row(next_grad, h);
    fetch(index + step);
    const auto values = [&](int chunk, A(&v)[kSize]) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        v[i] = n[chunk][i];
      }
    };
    const Moments<A> m = moments_of_row<T, Threads, Chunks>(group, a.norm, values, first, lane, columns);
    Run<T> weight[Chunks];
    fetch_row<T, Threads>(a.weight, weight, lane, a.weight == nullptr ? 0 : columns, A(1));
    A along = 0, level = 0;  // the means of h n and of h
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      A scale[kSize];
      widen_run(weight[chunk], scale);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        n[chunk][i] = m.normalised(n[chunk][i]);
        weight_sum[chunk][i] += h[chunk][i] * n[chunk][i];
        bias_sum[chunk][i] += h[chunk][i];
        h[chunk][i] *= scale[i];
        along += h[chunk][i] * n[chunk][i];
        level += h[chunk][i];
      }
    }
    Total<T> totals[2] = {along, level};
    group.reduce(Add{}, totals);
    along = static_cast<A>(totals[0] * a.norm.share);
    level = a.norm.centred ? static_cast<A>(totals[1] * a.norm.share) : A(0);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        h[chunk][i] = (h[chunk][i] - level - n[chunk][i] * along) * m.factor;
      }
    }
    if (a.grad_sum != nullptr) {
      add_row<T, Threads>(a.grad_sum + offsets[3], h, lane, columns);
    }
    if (active) {
      store_row<T, Threads>(a.grad_x + offsets[0], h, lane, columns, a.streaming);
    }
  });
  if (a.partial != nullptr) {
    write_sums<A, Threads>(weight_sum, bias_sum, a.partial + static_cast<int64_t>(blockIdx.x) * 2 * a.columns, lane,
                           columns);
  }
}

inline constexpr int kStridedThreads = 256;

// Computes the gradients for rows of any length and with any strides, one block per row. The column sums of a block are
// accumulated in `partial`.
template <class T>
__global__ void __launch_bounds__(kStridedThreads) gradients_strided(const __grid_constant__ GradientArguments<T> a) {
  using A = Compute<T>;
  Group<kStridedThreads> group;
  A* const partial = a.partial == nullptr ? nullptr : a.partial + static_cast<int64_t>(blockIdx.x) * 2 * a.columns;
  for (int64_t index = blockIdx.x; index < a.row_count; index += gridDim.x) {
    int64_t offsets[4];
    row_offsets(a.rows, index, offsets);
    const auto x = [&](int64_t column) { return widen(a.x[offsets[2] + column * a.column_strides[2]]); };
    const auto grad = [&](int64_t column) { return widen(a.grad[offsets[1] + column * a.column_strides[1]]); };
    const auto weight = [&](int64_t column) {
      return a.weight == nullptr ? A(1) : widen(a.weight[column * a.weight_stride]);
    };
    const Moments<A> m = moments_of<T>(group, a.norm, x, a.columns);
    Total<T> totals[2] = {};
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      const A n = m.normalised(x(column));
      const A g = grad(column);
      if (partial != nullptr) {
        const bool first = index == blockIdx.x;
        partial[column] = (first ? A(0) : partial[column]) + g * n;
        partial[a.columns + column] = (first ? A(0) : partial[a.columns + column]) + g;
      }
      const A h = g * weight(column);
      totals[0] += h * n;
      totals[1] += h;
    }
    group.reduce(Add{}, totals);
    const A along = static_cast<A>(totals[0] * a.norm.share);
    const A level = a.norm.centred ? static_cast<A>(totals[1] * a.norm.share) : A(0);
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      const A n = m.normalised(x(column));
      const A value = (grad(column) * weight(column) - level - n * along) * m.factor;
      const A added = a.grad_sum == nullptr ? A(-0.0) : widen(a.grad_sum[offsets[3] + column * a.column_strides[3]]);
      a.grad_x[offsets[0] + column * a.column_strides[0]] = narrow<T>(value + added);
    }
  }
}

inline constexpr int kSumColumns = 32;
inline constexpr int kSumRows = 16;

// result[c] = sum over blocks of partial[block, which, c], where which is 0 for the weight and 1 for the bias.
template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    add_partial_sums(const Compute<T>* partial, int64_t blocks, int64_t columns, T* weight, T* bias) {
  using A = Compute<T>;
  __shared__ A sums[kSumRows][kSumColumns];
  T* const result = blockIdx.y == 0 ? weight : bias;
  for (int64_t start = static_cast<int64_t>(blockIdx.x) * kSumColumns; start < columns;
       start += static_cast<int64_t>(gridDim.x) * kSumColumns) {
    const int64_t column = start + threadIdx.x;
    A sum = 0;
    for (int64_t block = threadIdx.y; column < columns && block < blocks; block += kSumRows) {
      sum += partial[(block * 2 + blockIdx.y) * columns + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
#pragma unroll
      for (int row = 1; row < kSumRows; ++row) {
        sum += sums[row][threadIdx.x];
      }
      result[column] = narrow<T>(sum);
    }
    __syncthreads();
  }
}

// Returns the number of blocks that can be resident on the device at once. More blocks would only produce more sums to
// add.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int threads) {
  int device, sms, blocks;
  check(cudaGetDevice(&device) == cudaSuccess &&
            cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0) == cudaSuccess,
        "fuseconv: the number of blocks that the device holds cannot be read");
  return static_cast<int64_t>(sms) * std::max(blocks, 1);
}

template <class T>
void run_norm_backward(CudaHost& host, const NormGradients& norm) {
  using A = Compute<T>;
  const cudaStream_t stream = stream_of(host);
  const In operands[4] = {norm.grad_x, norm.grad, norm.x, norm.grad_sum ? *norm.grad_sum : norm.x};
  const auto data = [](const std::optional<In>& tensor) {
    return tensor ? static_cast<const T*>(tensor->data) : nullptr;
  };
  GradientArguments<T> a{};
  a.rows = row_loop(operands, 4);
  a.columns = norm.x.sizes[norm.x.rank - 1];
  a.row_count = element_count(norm.x) / a.columns;
  a.grad_x = static_cast<T*>(norm.grad_x.data);
  a.grad = static_cast<const T*>(norm.grad.data);
  a.x = static_cast<const T*>(norm.x.data);
  a.grad_sum = data(norm.grad_sum);
  a.weight = data(norm.weight);
  a.weight_stride = norm.weight ? norm.weight->strides[0] : 1;
  a.norm = RowNorm<T>(a.columns, norm.eps, norm.centred);
  a.streaming = is_large(element_count(norm.x) * sizeof(T));
  const void* pointers[] = {a.grad_x, a.grad, a.x, a.grad_sum};
  bool aligned = a.columns % kVectorSize<T> == 0 && a.weight_stride == 1 && is_aligned(a.weight);
  for (int operand = 0; operand < 4; ++operand) {
    a.column_strides[operand] = operands[operand].strides[operands[operand].rank - 1];
    aligned &= pointers[operand] == nullptr ||
               has_aligned_rows<T>(a.rows, operand, a.column_strides[operand], pointers[operand]);
  }

  int64_t blocks = 0;
  const auto launch = [&](auto kernel, int threads, int rows_per_block) {
    blocks = std::min(row_blocks(a.row_count, rows_per_block), resident_blocks(kernel, threads));
    if (norm.grad_weight) {
      a.partial = static_cast<A*>(host.scratch(std::max<int64_t>(blocks, 1) * 2 * a.columns * sizeof(A)));
    }
    if (blocks > 0) {
      kernel<<<blocks, threads, 0, stream>>>(a);
    }
  };
  const auto in_registers = [&]<int Threads, int Chunks>() {
    launch(&gradients_in_registers<T, Threads, Chunks>, kRowBlock<Threads>, kRowsPerBlock<Threads>);
  };
  if (!aligned || !with_group<T>(a.columns, in_registers, Shape<8, 8>{}, Shape<32, 8>{}, Shape<32, 16>{},
                                 Shape<128, 8>{}, Shape<128, 16>{}, Shape<256, 16>{}, Shape<512, 16>{})) {
    launch(&gradients_strided<T>, kStridedThreads, 1);
  }
  check_launch("a kernel of a norm's gradient");
  if (norm.grad_weight) {
    T* const bias = norm.grad_bias ? static_cast<T*>(norm.grad_bias->data) : nullptr;
    const dim3 grid(static_cast<unsigned>(std::min<int64_t>((a.columns + kSumColumns - 1) / kSumColumns, 65536)),
                    bias == nullptr ? 1 : 2);
    add_partial_sums<T><<<grid, dim3(kSumColumns, kSumRows), 0, stream>>>(
        a.partial, blocks, a.columns, static_cast<T*>(norm.grad_weight->data), bias);
    check_launch("a kernel of a norm's gradient");
  }
}

}  // namespace

void norm_backward(CudaHost& host, const NormGradients& norm) {
  if (norm.x.sizes[norm.x.rank - 1] > 0) {
    dispatch(norm.x.dtype, [&]<class T>(T) { run_norm_backward<T>(host, norm); });
  }
}

}  // namespace fuseconv::cuda
