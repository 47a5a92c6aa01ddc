// Norms of rows that lie across memory, as those of x.transpose(1, 2) do: not the elements of a row are adjacent, but
// those of neighboring rows.
//
// A block copies the elements of kTile neighboring rows to shared memory as they are in memory, and each of its warps
// then takes one row at a time from there. So x is read once, and y, whose rows are dense, is written in whole lines.
#pragma once

#include <utility>

#include "core/activation.h"
#include "kernels/norm_arguments.cuh"

namespace fuseconv::cuda {

inline constexpr int kAcrossThreads = 256;
inline constexpr size_t kMostAcrossShared = 96 << 10;  // which every GPU from sm_80 on has
inline constexpr int kCopies = 4;                      // loads of a thread in flight

// A loop over rows whose last axis is along memory in x, and in the others that `across` names.
struct Across {
  bool residual, sum;
  int64_t tiles;  // along the last axis
};

// The place of an element in shared memory: neither the rows nor the columns of a warp share banks.
template <int kTile>
__device__ __forceinline__ int tile_place(int row, int column) {
  return column * kTile + (row ^ (column & (kTile - 1)));
}

// Runs of kSize rows are aligned in every operand that is read or written across.
template <class T, int kTile, int kSize>
__global__ void __launch_bounds__(kAcrossThreads)
    norm_across(const __grid_constant__ NormArguments<T> a, const __grid_constant__ Across across) {
  using A = Compute<T>;
  constexpr int kLanes = kTile / kSize, kStep = kAcrossThreads / kLanes;
  extern __shared__ __align__(16) unsigned char shared[];
  A* const tile = reinterpret_cast<A*>(shared);
  const int columns = static_cast<int>(a.columns), axis = a.rows.rank - 1;
  const int64_t outer = blockIdx.x / across.tiles, first = (blockIdx.x - outer * across.tiles) * kTile;
  const int rows = static_cast<int>(min(a.rows.sizes[axis] - first, int64_t{kTile}));
  int64_t offsets[4];
  row_offsets(a.rows, outer * a.rows.sizes[axis] + first, offsets);

  const int row = static_cast<int>(threadIdx.x) % kLanes * kSize;
  for (int start = static_cast<int>(threadIdx.x) / kLanes; start < columns && row < rows; start += kStep * kCopies) {
    Run<T, kSize> x[kCopies], residual[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int column = start + i * kStep;
      if (column < columns) {
        x[i] = load_run<kSize>(a.x + offsets[1] + column * a.column_strides[1] + row);
        if (across.residual) {
          residual[i] = load_run<kSize>(a.residual + offsets[2] + column * a.column_strides[2] + row);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int column = start + i * kStep;
      if (column < columns) {
        A values[kSize];
        widen_run(x[i], values);
        if (across.residual) {
          A added[kSize];
          widen_run(residual[i], added);
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            values[j] += added[j];
          }
        }
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          tile[tile_place<kTile>(row + j, column)] = values[j];
        }
      }
    }
  }
  __syncthreads();

  const int lane = threadIdx.x % 32;
  Group<32> group;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < rows; r += kAcrossThreads / 32) {
    const auto at = [&](int operand) { return offsets[operand] + r * a.rows.strides[operand][axis]; };
    if (a.residual != nullptr && !across.residual) {
      const T* const residual = a.residual + at(2);
      for (int column = lane; column < columns; column += 32) {
        tile[tile_place<kTile>(r, column)] += widen(residual[column * a.column_strides[2]]);
      }
      __syncwarp();
    }
    const auto load = [&](int64_t column) { return tile[tile_place<kTile>(r, static_cast<int>(column))]; };
    const Moments<A> m = moments_of<T>(group, a.norm, load, a.columns);
    T* const y = a.y + at(0);
    T* const sum = a.sum == nullptr || across.sum ? nullptr : a.sum + at(3);
    for (int column = lane; column < columns; column += 32) {
      const A scale = a.weight != nullptr ? widen(a.weight[column * a.weight_stride]) : A(1);
      const A shift = a.bias != nullptr ? widen(a.bias[column * a.bias_stride]) : A(-0.0);
      const A s = load(column);
      if (sum != nullptr) {
        sum[column * a.column_strides[3]] = narrow<T>(s);
      }
      const FormulaType<T> value(fma(m.normalised(s), scale, shift));
      y[column] = narrow<T>(value_of(AnyActivation{a.activation}(value)));
    }
  }
  if (across.sum) {
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x) / kLanes; column < columns && row < rows; column += kStep) {
      A values[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        values[j] = tile[tile_place<kTile>(row + j, column)];
      }
      store_run(a.sum + offsets[3] + column * a.column_strides[3] + row, narrow_run<T>(values));
    }
  }
}

// Whether an operand has rows side by side: its last axis of rows is along memory, its columns are not.
template <class T>
bool lies_across(const NormArguments<T>& a, int operand) {
  const int axis = a.rows.rank - 1;
  return a.rows.sizes[axis] > 1 && a.rows.strides[operand][axis] == 1 && a.column_strides[operand] != 1;
}

// Whether runs of rows are aligned.
template <class T>
bool has_aligned_runs(const NormArguments<T>& a, int operand, const T* data) {
  const int axis = a.rows.rank - 1;
  bool aligned =
      is_aligned(data) && a.column_strides[operand] % kVectorSize<T> == 0 && a.rows.sizes[axis] % kVectorSize<T> == 0;
  for (int other = 0; other < axis; ++other) {
    aligned &= a.rows.sizes[other] == 1 || a.rows.strides[operand][other] % kVectorSize<T> == 0;
  }
  return aligned;
}

// Runs the kernel if it is for these operands.
template <class T>
bool run_across(NormArguments<T> a, cudaStream_t stream) {
  if (a.residual != nullptr && !lies_across(a, 1)) {
    std::swap(a.x, a.residual);
    std::swap(a.column_strides[1], a.column_strides[2]);
    std::swap(a.rows.strides[1], a.rows.strides[2]);
  }
  Across across{a.residual != nullptr && lies_across(a, 2), a.sum != nullptr && lies_across(a, 3), 0};
  const int64_t rows = a.rows.sizes[a.rows.rank - 1];
  const auto launch = [&]<int kTile, int kSize>() {
    across.tiles = (rows + kTile - 1) / kTile;
    const int64_t blocks = a.row_count / rows * across.tiles;
    const size_t shared = static_cast<size_t>(a.columns) * kTile * sizeof(Compute<T>);
    if (blocks > kMaxBlocks || shared > kMostAcrossShared) {
      return false;
    }
    check_cuda(cudaFuncSetAttribute(norm_across<T, kTile, kSize>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kMostAcrossShared)),
               "cudaFuncSetAttribute");
    norm_across<T, kTile, kSize><<<static_cast<unsigned>(blocks), kAcrossThreads, shared, stream>>>(a, across);
    return true;
  };
  if (!lies_across(a, 1) || a.column_strides[0] != 1) {
    return false;
  }
  const bool aligned = has_aligned_runs(a, 1, a.x) && (!across.residual || has_aligned_runs(a, 2, a.residual)) &&
                       (!across.sum || has_aligned_runs<T>(a, 3, a.sum));
  if (aligned) {
    return launch.template operator()<32, kVectorSize<T>>() || launch.template operator()<16, kVectorSize<T>>();
  }
  return launch.template operator()<32, 1>() || launch.template operator()<16, 1>();
}

}  // namespace fuseconv::cuda
