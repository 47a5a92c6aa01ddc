// Computes d = formula(x...) elementwise over [..., columns], and the sum of d over all dims but the last, in one pass.
//
// A block processes columns of at least 64 bytes in a share of the rows. Its threads form a grid of columns by rows. A
// second kernel adds the sums of the shares in a fixed order, so that the result is the same on every run.
#pragma once

#include <algorithm>

#include "core/cuda.cuh"
#include "kernels/dense_rows.h"
#include "kernels/run.cuh"

namespace fuseconv::cuda {

inline constexpr int kColumnLanes = 8;
inline constexpr int kRowLanes = 32;
inline constexpr int64_t kRowsAlone = 512;  // up to this many rows, one share is faster than a second kernel

template <class T, int Inputs>
struct ColumnSumArguments {
  int64_t rows, columns, rows_per_share;
  T* d;
  T* sum;              // used if there is one share
  Compute<T>* shares;  // [shares, columns]; used if there are several shares
  const T* x[Inputs];
  int64_t strides[Inputs];
};

template <class Formula, class T, int Size, int Inputs, int... I>
__global__ void __launch_bounds__(kColumnLanes* kRowLanes)
    column_sum_kernel(const __grid_constant__ ColumnSumArguments<T, Inputs> a, std::integer_sequence<int, I...>) {
  using A = Compute<T>;
  const Formula formula{};
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kColumnLanes + threadIdx.x) * Size;
  const int64_t first = blockIdx.y * a.rows_per_share;
  const int64_t last = min(a.rows, first + a.rows_per_share);
  A sum[Size] = {};
  if (column < a.columns) {
#pragma unroll 4
    for (int64_t row = first + threadIdx.y; row < last; row += kRowLanes) {
      const Run<T, Size> runs[] = {load_run<Size>(a.x[I] + row * a.strides[I] + column)...};
      A x[Inputs][Size], d[Size];
      (widen_run(runs[I], x[I]), ...);
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        d[i] = formula(x[I][i]...);
        sum[i] += d[i];
      }
      store_run(a.d + row * a.columns + column, narrow_run<T>(d), false);
    }
  }
  __shared__ A lanes[kRowLanes][kColumnLanes * Size + 1];
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    lanes[threadIdx.y][threadIdx.x * Size + i] = sum[i];
  }
  __syncthreads();
  const int own = threadIdx.y * kColumnLanes + threadIdx.x;
  const int64_t target = static_cast<int64_t>(blockIdx.x) * kColumnLanes * Size + own;
  if (own < kColumnLanes * Size && target < a.columns) {
    A total = 0;
#pragma unroll
    for (int lane = 0; lane < kRowLanes; ++lane) {
      total += lanes[lane][own];
    }
    if (a.shares == nullptr) {
      a.sum[target] = narrow<T>(total);
    } else {
      a.shares[blockIdx.y * a.columns + target] = total;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(128) sum_shares_kernel(const Compute<T>* shares, int count, int64_t columns, T* sum) {
  const int64_t column = blockIdx.x * int64_t{128} + threadIdx.x;
  if (column < columns) {
    Compute<T> total = 0;
    for (int share = 0; share < count; ++share) {
      total += shares[share * columns + column];
    }
    sum[column] = narrow<T>(total);
  }
}

template <class Formula, class T, int Size, int Inputs>
void launch_column_sum(CudaHost& host, ColumnSumArguments<T, Inputs> arguments) {
  constexpr int64_t kColumns = kColumnLanes * Size;
  const int64_t across = (arguments.columns + kColumns - 1) / kColumns;
  int64_t shares = 1;
  if (arguments.rows > kRowsAlone) {
    constexpr int64_t kBlocks = 1024;  // several blocks per SM
    shares = std::clamp<int64_t>(kBlocks / across, 1, std::min<int64_t>(arguments.rows / 128, 1024));
    arguments.shares = static_cast<Compute<T>*>(host.scratch(shares * arguments.columns * sizeof(Compute<T>)));
  }
  arguments.rows_per_share = (arguments.rows + shares - 1) / shares;
  const cudaStream_t stream = stream_of(host);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(shares)), block(kColumnLanes, kRowLanes);
  column_sum_kernel<Formula, T, Size, Inputs>
      <<<grid, block, 0, stream>>>(arguments, std::make_integer_sequence<int, Inputs>{});
  check_launch("a column sum kernel");
  if (arguments.shares != nullptr) {
    sum_shares_kernel<T><<<static_cast<unsigned>((arguments.columns + 127) / 128), 128, 0, stream>>>(
        arguments.shares, static_cast<int>(shares), arguments.columns, arguments.sum);
    check_launch("a column sum kernel");
  }
}

// d is contiguous; sum has the shape [columns].
template <class Formula, class... Inputs>
void pointwise_and_column_sum(CudaHost& host, const Formula&, Out d, Out sum, Inputs... inputs) {
  constexpr int kInputs = sizeof...(Inputs);
  const int64_t columns = sum.sizes[0];
  if (columns == 0) {
    return;
  }
  const DenseRows rows[] = {dense_rows(host, inputs)...};
  dispatch(d.dtype, [&]<class T>(T) {
    ColumnSumArguments<T, kInputs> arguments{};
    arguments.rows = element_count(d) / columns;
    arguments.columns = columns;
    arguments.d = static_cast<T*>(d.data);
    arguments.sum = static_cast<T*>(sum.data);
    bool aligned = columns % kVectorSize<T> == 0 && is_aligned(d.data);
    for (int i = 0; i < kInputs; ++i) {
      arguments.x[i] = static_cast<const T*>(rows[i].data);
      arguments.strides[i] = rows[i].stride;
      aligned &= is_aligned(rows[i].data) && rows[i].stride % kVectorSize<T> == 0;
    }
    if (aligned) {
      launch_column_sum<Formula, T, kVectorSize<T>, kInputs>(host, arguments);
    } else {
      launch_column_sum<Formula, T, 1, kInputs>(host, arguments);
    }
  });
}

}  // namespace fuseconv::cuda
