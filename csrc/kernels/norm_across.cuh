// Computes the norms of rows that lie across memory, such as the rows of x.transpose(1, 2): adjacent elements in memory
// belong to neighboring rows, and not to the same row.
//
// A block copies the elements of kTile neighboring rows to shared memory in memory order, so that x is read once. Each
// thread copies elements of the same few rows throughout, and accumulates the sums for the moments of these rows at the
// same time. Then each warp writes 64 columns of several rows, two columns per thread, so that y, whose rows are dense,
// is written in whole cache lines.
#pragma once

#include <utility>

#include "core/activation.h"
#include "core/shared_memory.h"
#include "kernels/norm_arguments.cuh"

namespace fuseconv::cuda {

inline constexpr size_t kMostAcrossShared = 96 << 10;  // the limit per block; every GPU from sm_80 on has 99 KiB
inline constexpr int kAcrossThreads = 512;             // half as many for rows of up to kFewColumns
inline constexpr int kFewColumns = 384;
inline constexpr int kCopies = 4;      // the loads of a thread in flight
inline constexpr int kRowsAtOnce = 8;  // the rows whose stores are independent

// The number of elements of neighboring rows that a thread loads at once.
template <class T>
inline constexpr int kAcrossRun = 8 / sizeof(T);

// Describes the layout of the operands. The last axis of the loop over rows has stride 1 in x, and also in each of the
// other operands whose flag is set here.
struct Across {
  bool residual, sum;
  bool pairs;     // whether two columns of dense rows can be stored at once
  int64_t tiles;  // the number of tiles along the last axis
};

// Returns the position of an element in shared memory. A warp has no bank conflicts, whether it accesses a row or a
// column.
template <int kTile>
__device__ __forceinline__ int tile_place(int row, int column) {
  return column * kTile + (row ^ (column & (kTile - 1)));
}

// Computes the moments of kTile rows. Each thread passes its sums of the distances from the origins of kSize rows,
// taken over the thread's columns. The first of thread t's rows is t % (kTile / kSize) * kSize.
template <class T, int kTile, int kSize, int kThreads>
__device__ __forceinline__ void moments_of_tile(const RowNorm<T>& norm, Total<T> (&sums)[kSize][2],
                                                const Compute<T> (&origins)[kSize], Moments<Compute<T>>* moments) {
  constexpr int kLanes = kTile / kSize, kWarps = kThreads / 32;
  __shared__ Total<T> partial[kWarps][kTile][2];
  __shared__ Compute<T> shared_origins[kTile];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int distance = 16; distance >= kLanes; distance /= 2) {
        sums[j][k] += __shfl_xor_sync(0xffffffffu, sums[j][k], distance);
      }
      if (lane < kLanes) {
        partial[warp][lane * kSize + j][k] = sums[j][k];
      }
    }
    if (threadIdx.x < kLanes) {
      shared_origins[lane * kSize + j] = origins[j];
    }
  }
  __syncthreads();
  if (threadIdx.x < kTile) {
    Total<T> total[2] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total[0] += partial[w][threadIdx.x][0];
      total[1] += partial[w][threadIdx.x][1];
    }
    moments[threadIdx.x] = norm.moments(shared_origins[threadIdx.x], total);
  }
  __syncthreads();
}

// Computes the norms of kTile rows. Runs of kSize rows must be aligned in every operand that lies across memory.
template <class T, int kTile, int kSize, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    norm_across(const __grid_constant__ NormArguments<T> a, const __grid_constant__ Across across) {
  using A = Compute<T>;
  constexpr int kLanes = kTile / kSize, kStep = kThreads / kLanes, kWarps = kThreads / 32;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Moments<A> moments[kTile];
  A* const tile = reinterpret_cast<A*>(shared);
  const int columns = static_cast<int>(a.columns), axis = a.rows.rank - 1;
  const int64_t outer = blockIdx.x / across.tiles, first = (blockIdx.x - outer * across.tiles) * kTile;
  const int rows = static_cast<int>(min(a.rows.sizes[axis] - first, int64_t{kTile}));
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int64_t offsets[4];
  row_offsets(a.rows, outer * a.rows.sizes[axis] + first, offsets);

  if (a.residual != nullptr && !across.residual) {  // the rows of the residual do not lie across memory
    for (int r = warp; r < rows; r += kWarps) {
      const T* const residual = a.residual + offsets[2] + r * a.rows.strides[2][axis];
#pragma unroll 8
      for (int column = lane; column < columns; column += 32) {
        tile[tile_place<kTile>(r, column)] = widen(residual[column * a.column_strides[2]]);
      }
    }
    __syncthreads();
  }

  const int row = static_cast<int>(threadIdx.x) % kLanes * kSize, own = static_cast<int>(threadIdx.x) / kLanes;
  const bool active = row < rows;
  const T* x_at = a.x + offsets[1] + row;
  const T* residual_at = across.residual ? a.residual + offsets[2] + row : nullptr;
  A origins[kSize] = {};
  Total<T> sums[kSize][2] = {};
  if (active) {
    // The origin of a row is its first element in f16, bf16 and f64. In f32 the origin is 0, because its sums are in
    // f64.
    if (a.norm.centred && !std::is_same_v<T, float>) {
      A added[kSize] = {};
      widen_run(load_run<kSize>(x_at), origins);
      if (across.residual) {
        widen_run(load_run<kSize>(residual_at), added);
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        origins[j] += a.residual != nullptr && !across.residual ? tile[tile_place<kTile>(row + j, 0)] : added[j];
      }
    }
    x_at += own * a.column_strides[1];
    residual_at += own * a.column_strides[2];
  }
  if (a.residual != nullptr && !across.residual) {
    __syncthreads();  // the origins must be read before the sums are written
  }
  for (int start = own; start < columns && active; start += kStep * kCopies) {
    Run<T, kSize> x[kCopies], residual[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (start + i * kStep < columns) {
        x[i] = load_run<kSize>(x_at);
        if (across.residual) {
          residual[i] = load_run<kSize>(residual_at);
        }
      }
      x_at += kStep * a.column_strides[1];
      residual_at += kStep * a.column_strides[2];
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int column = start + i * kStep;
      if (column < columns) {
        A values[kSize], added[kSize] = {};
        widen_run(x[i], values);
        if (across.residual) {
          widen_run(residual[i], added);
        }
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          A& place = tile[tile_place<kTile>(row + j, column)];
          if (a.residual != nullptr) {
            values[j] += across.residual ? added[j] : place;
          }
          place = values[j];
          a.norm.add(static_cast<Total<T>>(values[j]) - origins[j], sums[j]);
        }
      }
    }
  }

  // A warp processes a strip of 64 columns of several rows at a time. The weight and bias of the first strip are loaded
  // in advance.
  const int groups = (rows + kRowsAtOnce - 1) / kRowsAtOnce, items = groups * ((columns + 63) / 64);
  A scale[2], shift[2];
  const auto load_affine = [&](int column) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const bool inside = column + k < columns;
      scale[k] = a.weight != nullptr && inside ? widen(a.weight[(column + k) * a.weight_stride]) : A(1);
      shift[k] = a.bias != nullptr && inside ? widen(a.bias[(column + k) * a.bias_stride]) : A(-0.0);
    }
  };
  load_affine(warp / groups * 64 + lane * 2);
  moments_of_tile<T, kTile, kSize, kThreads>(a.norm, sums, origins, moments);

  T* const sum = a.sum == nullptr || across.sum ? nullptr : a.sum;
  for (int item = warp; item < items; item += kWarps) {
    const int strip = item / groups, top = (item - strip * groups) * kRowsAtOnce;
    const int column = strip * 64 + lane * 2;
    const bool both = column + 1 < columns;
    if (item != warp) {
      load_affine(column);
    }
    if (column >= columns) {
      continue;
    }
    const auto store = [&](T* to, int64_t stride, const A(&values)[2]) {
      if (across.pairs && stride == 1) {
        store_run(to, narrow_run<T>(values));
      } else {
        to[0] = narrow<T>(values[0]);
        if (both) {
          to[stride] = narrow<T>(values[1]);
        }
      }
    };
    T* y = a.y + offsets[0] + top * a.rows.strides[0][axis] + column;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i, y += a.rows.strides[0][axis]) {
      const int r = top + i;
      if (r < rows) {
        const Moments<A> m = moments[r];
        A s[2], values[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          s[k] = tile[tile_place<kTile>(r, both ? column + k : column)];
          values[k] = fma(m.normalised(s[k]), scale[k], shift[k]);
        }
        if (a.activation != Activation::none) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            values[k] = value_of(AnyActivation{a.activation}(FormulaType<T>(values[k])));
          }
        }
        store(y, 1, values);
        if (sum != nullptr) {
          store(sum + offsets[3] + r * a.rows.strides[3][axis] + column * a.column_strides[3], a.column_strides[3], s);
        }
      }
    }
  }
  if (across.sum && active) {
    for (int column = own; column < columns; column += kStep) {
      A values[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        values[j] = tile[tile_place<kTile>(row + j, column)];
      }
      store_run(a.sum + offsets[3] + column * a.column_strides[3] + row, narrow_run<T>(values));
    }
  }
}

// Returns whether the rows of an operand lie across memory: its last axis of rows has stride 1, and its columns have
// another stride.
template <class T>
bool lies_across(const NormArguments<T>& a, int operand) {
  const int axis = a.rows.rank - 1;
  return a.rows.sizes[axis] > 1 && a.rows.strides[operand][axis] == 1 && a.column_strides[operand] != 1;
}

// Returns whether runs of neighboring rows start at aligned addresses.
template <class T>
bool has_aligned_runs(const NormArguments<T>& a, int operand, const T* data) {
  constexpr int kSize = kAcrossRun<T>;
  const int axis = a.rows.rank - 1;
  bool aligned = reinterpret_cast<uintptr_t>(data) % (kSize * sizeof(T)) == 0 &&
                 a.column_strides[operand] % kSize == 0 && a.rows.sizes[axis] % kSize == 0;
  for (int other = 0; other < axis; ++other) {
    aligned &= a.rows.sizes[other] == 1 || a.rows.strides[operand][other] % kSize == 0;
  }
  return aligned;
}

// Returns whether pairs of columns are aligned if the rows are dense.
template <class T>
bool has_pairs(const NormArguments<T>& a, int operand, const T* data) {
  bool aligned = a.columns % 2 == 0 && reinterpret_cast<uintptr_t>(data) % (2 * sizeof(T)) == 0;
  for (int axis = 0; axis < a.rows.rank; ++axis) {
    aligned &= a.column_strides[operand] != 1 || a.rows.sizes[axis] == 1 || a.rows.strides[operand][axis] % 2 == 0;
  }
  return aligned;
}

// Runs the kernel if it supports these operands, and returns whether it did.
template <class T>
bool run_across(NormArguments<T> a, cudaStream_t stream) {
  if (a.residual != nullptr && !lies_across(a, 1)) {
    std::swap(a.x, a.residual);
    std::swap(a.column_strides[1], a.column_strides[2]);
    std::swap(a.rows.strides[1], a.rows.strides[2]);
  }
  Across across{a.residual != nullptr && lies_across(a, 2), a.sum != nullptr && lies_across(a, 3),
                has_pairs(a, 0, a.y) && has_pairs<T>(a, 3, a.sum), 0};
  const int64_t rows = a.rows.sizes[a.rows.rank - 1];
  const auto launch = [&]<int kTile, int kSize, int kThreads>() {
    across.tiles = (rows + kTile - 1) / kTile;
    const int64_t blocks = a.row_count / rows * across.tiles;
    const size_t shared = static_cast<size_t>(a.columns) * kTile * sizeof(Compute<T>);
    if (blocks > kMaxBlocks || shared > kMostAcrossShared) {
      return false;
    }
    allow_shared_memory(norm_across<T, kTile, kSize, kThreads>, kMostAcrossShared);
    norm_across<T, kTile, kSize, kThreads><<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(a, across);
    return true;
  };
  if (!lies_across(a, 1) || a.column_strides[0] != 1) {
    return false;
  }
  const bool aligned = has_aligned_runs(a, 1, a.x) && (!across.residual || has_aligned_runs(a, 2, a.residual)) &&
                       (!across.sum || has_aligned_runs<T>(a, 3, a.sum));
  const auto with_size = [&]<int kSize>() {
    if (a.columns <= kFewColumns) {
      return launch.template operator()<32, kSize, kAcrossThreads / 2>();
    }
    return launch.template operator()<32, kSize, kAcrossThreads>() ||
           launch.template operator()<16, kSize, kAcrossThreads>();
  };
  return aligned ? with_size.template operator()<kAcrossRun<T>>() : with_size.template operator()<1>();
}

}  // namespace fuseconv::cuda
