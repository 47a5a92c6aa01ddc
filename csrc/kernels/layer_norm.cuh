// The layer norm of kernels/layer_norm.h on CUDA.
//
// Rows that are dense, aligned and not too long stay in the registers of a warp, or of a block, between the passes:
// they are read once. Other rows, and f64, go through a kernel that reads them three times, from cache as a rule.
#pragma once

#include <algorithm>

#include "core/cuda.cuh"
#include "kernels/layer_norm.h"

namespace fuseconv::cuda {

template <class T>
struct LayerNormArguments {
  Loop rows;  // operands: y, x, residual, sum
  int64_t row_count;
  int64_t columns;
  int64_t column_strides[4];
  int64_t weight_stride;
  int64_t bias_stride;
  T* y;
  const T* x;
  const T* residual;  // these four may be null
  T* sum;
  const T* weight;
  const T* bias;
  Compute<T> eps;
  Activation activation;
};

// The operands at one row.
template <class T>
struct Row {
  T* y;
  const T* x;
  const T* residual;
  T* sum;

  __device__ __forceinline__ Row(const LayerNormArguments<T>& a, int64_t index) {
    int64_t offsets[4] = {};
#pragma unroll 1
    for (int axis = a.rows.rank - 1; axis >= 0; --axis) {
      const int64_t rest = axis == 0 ? 0 : index / a.rows.sizes[axis];
      const int64_t position = index - rest * a.rows.sizes[axis];
      index = rest;
#pragma unroll
      for (int operand = 0; operand < 4; ++operand) {
        offsets[operand] += position * a.rows.strides[operand][axis];
      }
    }
    y = a.y + offsets[0];
    x = a.x + offsets[1];
    residual = a.residual == nullptr ? nullptr : a.residual + offsets[2];
    sum = a.sum == nullptr ? nullptr : a.sum + offsets[3];
  }
};

template <class A>
struct Moments {
  A center;
  A correction;
  A factor;
};

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// The sum over the threads of a row, in each of them: a warp, or a block of Threads. All threads of the group call it.
template <int Threads, class A>
__device__ __forceinline__ A group_sum(A value) {
  value = warp_sum(value);
  if constexpr (Threads > 32) {
    __shared__ A partial[Threads / 32];
    if (threadIdx.x % 32 == 0) {
      partial[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < Threads / 32; ++warp) {
      value += partial[warp];
    }
    __syncthreads();
  }
  return value;
}

// From the sums of distances to the center and of their squares; kernels/layer_norm.cpp says why the correction.
template <class A>
__device__ __forceinline__ Moments<A> finish_moments(A center, A distance, A squares, int64_t columns, A eps) {
  const A correction = distance / static_cast<A>(columns);
  const A variance = squares / static_cast<A>(columns) - correction * correction;
  // Written so that a NaN stays one.
  return {center, correction, A(1) / sqrt((variance < A(0) ? A(0) : variance) + eps)};
}

inline constexpr int kRowsPerBlock = 4;  // of one warp each

// Rows of at most Threads * Chunks * kVectorSize<T> elements, one vector a chunk, in registers.
template <class T, class Act, int Threads, int Chunks>
__global__ void __launch_bounds__(Threads > 32 ? Threads : 32 * kRowsPerBlock)
    layer_norm_in_registers(const __grid_constant__ LayerNormArguments<T> a) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  using Run = Vector<T, kSize>;
  const int rows_per_block = blockDim.x / Threads;
  const int lane = threadIdx.x % Threads;
  const int64_t columns = a.columns;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / Threads; index < a.row_count;
       index += static_cast<int64_t>(gridDim.x) * rows_per_block) {
    const Row<T> row(a, index);
    A s[Chunks][kSize];
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const int64_t column = static_cast<int64_t>(chunk * Threads + lane) * kSize;
      Run run{};
      if (column < columns) {
        run = *reinterpret_cast<const Run*>(row.x + column);
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        s[chunk][i] = widen(run.values[i]);
      }
    }
    if (row.residual != nullptr) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        const int64_t column = static_cast<int64_t>(chunk * Threads + lane) * kSize;
        Run run{};
        if (column < columns) {
          run = *reinterpret_cast<const Run*>(row.residual + column);
        }
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          s[chunk][i] += widen(run.values[i]);
        }
      }
    }
    if (row.sum != nullptr) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        const int64_t column = static_cast<int64_t>(chunk * Threads + lane) * kSize;
        Run run;
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          run.values[i] = narrow<T>(s[chunk][i]);
        }
        if (column < columns) {
          *reinterpret_cast<Run*>(row.sum + column) = run;
        }
      }
    }

    A total = 0;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        total += s[chunk][i];  // chunks past the end hold zeros
      }
    }
    const A center = group_sum<Threads>(total) / static_cast<A>(columns);
    A distance = 0;
    A squares = 0;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      if (static_cast<int64_t>(chunk * Threads + lane) * kSize < columns) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const A d = s[chunk][i] - center;
          distance += d;
          squares += d * d;
        }
      }
    }
    distance = group_sum<Threads>(distance);
    squares = group_sum<Threads>(squares);
    const Moments<A> m = finish_moments(center, distance, squares, columns, a.eps);

#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const int64_t column = static_cast<int64_t>(chunk * Threads + lane) * kSize;
      if (column < columns) {
        Run weight{}, bias{}, run;
        if (a.weight != nullptr) {
          weight = *reinterpret_cast<const Run*>(a.weight + column);
        }
        if (a.bias != nullptr) {
          bias = *reinterpret_cast<const Run*>(a.bias + column);
        }
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          A value = (s[chunk][i] - m.center - m.correction) * m.factor;
          value = a.weight != nullptr ? value * widen(weight.values[i]) : value;
          value = a.bias != nullptr ? value + widen(bias.values[i]) : value;
          run.values[i] = narrow<T>(Act{}(value));
        }
        *reinterpret_cast<Run*>(row.y + column) = run;
      }
    }
  }
}

inline constexpr int kStridedThreads = 256;

// Rows of any length and strides, a block each.
template <class T>
__global__ void __launch_bounds__(kStridedThreads) layer_norm_strided(const __grid_constant__ LayerNormArguments<T> a) {
  using A = Compute<T>;
  for (int64_t index = blockIdx.x; index < a.row_count; index += gridDim.x) {
    const Row<T> row(a, index);
    const auto load = [&](int64_t column) {
      const A x = widen(row.x[column * a.column_strides[1]]);
      return row.residual == nullptr ? x : x + widen(row.residual[column * a.column_strides[2]]);
    };
    A total = 0;
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      const A s = load(column);
      total += s;
      if (row.sum != nullptr) {
        row.sum[column * a.column_strides[3]] = narrow<T>(s);
      }
    }
    const A center = group_sum<kStridedThreads>(total) / static_cast<A>(a.columns);
    A distance = 0;
    A squares = 0;
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      const A d = load(column) - center;
      distance += d;
      squares += d * d;
    }
    distance = group_sum<kStridedThreads>(distance);
    squares = group_sum<kStridedThreads>(squares);
    const Moments<A> m = finish_moments(center, distance, squares, a.columns, a.eps);
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      A value = (load(column) - m.center - m.correction) * m.factor;
      value = a.weight != nullptr ? value * widen(a.weight[column * a.weight_stride]) : value;
      value = a.bias != nullptr ? value + widen(a.bias[column * a.bias_stride]) : value;
      row.y[column * a.column_strides[0]] = narrow<T>(activate(a.activation, value));
    }
  }
}

template <class T, class Act, int Threads, int PerThread>
void launch_in_registers(cudaStream_t stream, const LayerNormArguments<T>& arguments) {
  const int rows_per_block = Threads > 32 ? 1 : kRowsPerBlock;
  const int64_t blocks = std::min((arguments.row_count + rows_per_block - 1) / rows_per_block, kMaxBlocks);
  layer_norm_in_registers<T, Act, Threads, PerThread / kVectorSize<T>>
      <<<blocks, Threads * rows_per_block, 0, stream>>>(arguments);
  check_launch("a layer norm kernel");
}

template <class T>
bool has_aligned_rows(const LayerNormArguments<T>& a) {
  const void* data[] = {a.y, a.x, a.residual, a.sum};
  bool aligned = a.columns % kVectorSize<T> == 0;
  for (int operand = 0; operand < 4; ++operand) {
    if (data[operand] != nullptr) {
      aligned &= a.column_strides[operand] == 1 && is_aligned(data[operand]);
      for (int axis = 0; axis < a.rows.rank; ++axis) {
        aligned &= a.rows.sizes[axis] == 1 || a.rows.strides[operand][axis] % kVectorSize<T> == 0;
      }
    }
  }
  aligned &= a.weight == nullptr || (a.weight_stride == 1 && is_aligned(a.weight));
  aligned &= a.bias == nullptr || (a.bias_stride == 1 && is_aligned(a.bias));
  return aligned;
}

template <class T>
LayerNormArguments<T> arguments_of(const LayerNorm& norm) {
  // Absent operands stand in for x in the loop: their pointers stay null.
  const In operands[4] = {norm.y, norm.x, norm.residual ? *norm.residual : norm.x, norm.sum ? In(*norm.sum) : norm.x};
  const auto data = [](const std::optional<In>& tensor) {
    return tensor ? static_cast<const T*>(tensor->data) : nullptr;
  };
  LayerNormArguments<T> a{};
  a.rows = row_loop(operands, 4);
  a.row_count = a.rows.count();
  a.columns = norm.x.sizes[norm.x.rank - 1];
  for (int operand = 0; operand < 4; ++operand) {
    a.column_strides[operand] = operands[operand].strides[operands[operand].rank - 1];
  }
  a.weight_stride = norm.weight ? norm.weight->strides[0] : 0;
  a.bias_stride = norm.bias ? norm.bias->strides[0] : 0;
  a.y = static_cast<T*>(norm.y.data);
  a.x = static_cast<const T*>(norm.x.data);
  a.residual = data(norm.residual);
  a.sum = norm.sum ? static_cast<T*>(norm.sum->data) : nullptr;
  a.weight = data(norm.weight);
  a.bias = data(norm.bias);
  a.eps = static_cast<Compute<T>>(norm.eps);
  a.activation = norm.activation;
  return a;
}

template <class T, class Act>
void launch_in_registers(cudaStream_t stream, const LayerNormArguments<T>& arguments) {
  if (arguments.columns <= 32 * 8) {
    launch_in_registers<T, Act, 32, 8>(stream, arguments);
  } else if (arguments.columns <= 32 * 32) {
    launch_in_registers<T, Act, 32, 32>(stream, arguments);
  } else if (arguments.columns <= 32 * 96) {
    launch_in_registers<T, Act, 32, 96>(stream, arguments);
  } else {
    launch_in_registers<T, Act, 256, 64>(stream, arguments);
  }
}

inline constexpr int64_t kMaxColumnsInRegisters = 256 * 64;

template <class T>
void launch_strided(cudaStream_t stream, const LayerNormArguments<T>& arguments) {
  layer_norm_strided<T><<<std::min(arguments.row_count, kMaxBlocks), kStridedThreads, 0, stream>>>(arguments);
  check_launch("a layer norm kernel");
}

template <class Act>
void layer_norm(CudaHost& host, const LayerNorm& norm) {
  if (element_count(norm.x) == 0) {
    return;
  }
  const cudaStream_t stream = stream_of(host);
  dispatch(norm.x.dtype, [&]<class T>(T) {
    const LayerNormArguments<T> arguments = arguments_of<T>(norm);
    if constexpr (!std::is_same_v<T, double>) {
      if (has_aligned_rows(arguments) && arguments.columns <= kMaxColumnsInRegisters) {
        return launch_in_registers<T, Act>(stream, arguments);
      }
    }
    launch_strided(stream, arguments);
  });
}

}  // namespace fuseconv::cuda
