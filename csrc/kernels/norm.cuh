// The norms of kernels/norm.h on CUDA.
//
// Rows that are dense, aligned and not too long stay in the registers of a group of threads between the passes: they
// are read once. Other rows, and f64 with an activation, go through a kernel that reads them three times, from cache as
// a rule.
#pragma once

#include "kernels/moments.cuh"
#include "kernels/norm.h"

namespace fuseconv::cuda {

template <class T>
struct NormArguments {
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
  RowNorm<T> norm;
  bool streaming;
  Activation activation;
};

// Calls `function` with the functor of an activation: one branch for many elements.
template <class Function>
__device__ __forceinline__ void with_activation(Activation activation, Function function) {
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      return function(Relu{});
    case Activation::gelu:
      return function(Gelu{});
    case Activation::gelu_tanh:
      return function(GeluTanh{});
    case Activation::silu:
      return function(Silu{});
    case Activation::sigmoid:
      return function(Sigmoid{});
    case Activation::tanh:
      return function(Tanh{});
  }
}

__device__ __forceinline__ float relu_keeping_nan(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// In place, after all that activations have in common: what is on both sides of a branch, the compiler moves before it,
// and has it wait in registers.
template <class T, int Chunks>
__device__ __forceinline__ void activate_row(Activation activation, Compute<T> (&s)[Chunks][kVectorSize<T>]) {
  with_activation(activation, [&]<class Act>(Act act) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        if constexpr (sizeof(T) != 8 && std::is_same_v<Act, Relu>) {
          s[chunk][i] = relu_keeping_nan(s[chunk][i]);
        } else if constexpr (sizeof(T) == 2) {
          s[chunk][i] = act(Coarse(s[chunk][i])).value;
        } else {
          s[chunk][i] = act(s[chunk][i]);
        }
      }
    }
  });
}

// Distances to the center become (s * factor + offset) * weight + bias, where these are.
template <class T, int Threads, bool kWeight, bool kBias, int Chunks>
__device__ __forceinline__ void scale_row(const NormArguments<T>& a, const Moments<Compute<T>>& m,
                                          Compute<T> (&s)[Chunks][kVectorSize<T>], int lane, int columns) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const int column = (chunk * Threads + lane) * kVectorSize<T>;
    if (column < columns) {
      Run<T> weight, bias;
      if constexpr (kWeight) {
        weight = load_run(a.weight + column);
      }
      if constexpr (kBias) {
        bias = load_run(a.bias + column);
      }
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        Compute<T>& value = s[chunk][i];
        value = fma(value, m.factor, m.offset);
        if constexpr (kWeight && kBias) {
          value = fma(value, widen(weight.values[i]), widen(bias.values[i]));
        } else if constexpr (kWeight) {
          value *= widen(weight.values[i]);
        } else if constexpr (kBias) {
          value += widen(bias.values[i]);
        }
      }
    }
  }
}

// Rows of at most Threads * Chunks runs.
template <class T, int Threads, int Chunks>
__global__ void __launch_bounds__(kRowBlock<Threads>, kResidentBlocks<Compute<T>, Threads, Chunks * kVectorSize<T>>)
    norm_in_registers(const __grid_constant__ NormArguments<T> a) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  const int lane = threadIdx.x % Threads;
  const int columns = static_cast<int>(a.columns);
  Group<Threads> group;
  for_each_row<Threads>(a.row_count, [&](int64_t index, bool active) {
    int64_t offsets[4];
    row_offsets(a.rows, index, offsets);
    A s[Chunks][kSize];
    A first = sizeof(T) == 2 ? widen(a.x[offsets[1]]) : A(0);
    load_row<T, Threads>(a.x + offsets[1], s, lane, columns, A(0));
    if (a.residual != nullptr) {
      first += sizeof(T) == 2 ? widen(a.residual[offsets[2]]) : A(0);
      add_row<T, Threads>(a.residual + offsets[2], s, lane, columns);
    }
    if (a.sum != nullptr && active) {
      store_row<T, Threads>(a.sum + offsets[3], s, lane, columns, a.streaming);
    }
    const Moments<A> m = center_row<T>(group, a.norm, s, first, lane, columns);
    // One branch for the row: one an element is not free.
    if (a.weight != nullptr && a.bias != nullptr) {
      scale_row<T, Threads, true, true>(a, m, s, lane, columns);
    } else if (a.weight != nullptr) {
      scale_row<T, Threads, true, false>(a, m, s, lane, columns);
    } else if (a.bias != nullptr) {
      scale_row<T, Threads, false, true>(a, m, s, lane, columns);
    } else {
      scale_row<T, Threads, false, false>(a, m, s, lane, columns);
    }
    if constexpr (!std::is_same_v<T, double>) {
      activate_row<T>(a.activation, s);
    }
    if (active) {
      store_row<T, Threads>(a.y + offsets[0], s, lane, columns, a.streaming);
    }
  });
}

inline constexpr int kStridedThreads = 256;

// Rows of any length and strides, a block each.
template <class T>
__global__ void __launch_bounds__(kStridedThreads) norm_strided(const __grid_constant__ NormArguments<T> a) {
  using A = Compute<T>;
  Group<kStridedThreads> group;
  for (int64_t index = blockIdx.x; index < a.row_count; index += gridDim.x) {
    int64_t offsets[4];
    row_offsets(a.rows, index, offsets);
    const auto load = [&](int64_t column) {
      const A x = widen(a.x[offsets[1] + column * a.column_strides[1]]);
      return a.residual == nullptr ? x : x + widen(a.residual[offsets[2] + column * a.column_strides[2]]);
    };
    const Moments<A> m = moments_of<T>(group, a.norm, load, a.columns);
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      const A scale = a.weight != nullptr ? widen(a.weight[column * a.weight_stride]) : A(1);
      const A shift = a.bias != nullptr ? widen(a.bias[column * a.bias_stride]) : A(-0.0);
      const A s = load(column);
      if (a.sum != nullptr) {
        a.sum[offsets[3] + column * a.column_strides[3]] = narrow<T>(s);
      }
      const A value = fma(fma(s - m.center, m.factor, m.offset), scale, shift);
      a.y[offsets[0] + column * a.column_strides[0]] = narrow<T>(activate(a.activation, value));
    }
  }
}

template <class T>
NormArguments<T> arguments_of(const Norm& norm) {
  // Absent operands stand in for x in the loop: their pointers stay null.
  const In operands[4] = {norm.y, norm.x, norm.residual ? *norm.residual : norm.x, norm.sum ? In(*norm.sum) : norm.x};
  const auto data = [](const std::optional<In>& tensor) {
    return tensor ? static_cast<const T*>(tensor->data) : nullptr;
  };
  NormArguments<T> a{};
  a.rows = row_loop(operands, 4);
  a.row_count = a.rows.count();
  a.columns = norm.x.sizes[norm.x.rank - 1];
  for (int operand = 0; operand < 4; ++operand) {
    a.column_strides[operand] = operands[operand].strides[operands[operand].rank - 1];
  }
  a.weight_stride = norm.weight ? norm.weight->strides[0] : 1;
  a.bias_stride = norm.bias ? norm.bias->strides[0] : 1;
  a.y = static_cast<T*>(norm.y.data);
  a.x = static_cast<const T*>(norm.x.data);
  a.residual = data(norm.residual);
  a.sum = norm.sum ? static_cast<T*>(norm.sum->data) : nullptr;
  a.weight = data(norm.weight);
  a.bias = data(norm.bias);
  a.norm = RowNorm<T>(a.columns, norm.eps, norm.centred);
  a.activation = norm.activation;
  a.streaming = exceeds_cache(element_count(norm.x) * sizeof(T));
  return a;
}

template <class T>
bool can_stay_in_registers(const NormArguments<T>& a) {
  const void* data[] = {a.y, a.x, a.residual, a.sum};
  bool can = a.columns % kVectorSize<T> == 0 && (!std::is_same_v<T, double> || a.activation == Activation::none);
  for (int operand = 0; operand < 4; ++operand) {
    can &= data[operand] == nullptr || has_aligned_rows<T>(a.rows, operand, a.column_strides[operand], data[operand]);
  }
  // A null pointer is aligned.
  return can && a.weight_stride == 1 && is_aligned(a.weight) && a.bias_stride == 1 && is_aligned(a.bias);
}

template <class T>
void run_norm(CudaHost& host, const Norm& norm) {
  const cudaStream_t stream = stream_of(host);
  const NormArguments<T> arguments = arguments_of<T>(norm);
  const auto in_registers = [&]<int Threads, int Chunks>() {
    norm_in_registers<T, Threads, Chunks>
        <<<row_blocks(arguments.row_count, kRowsPerBlock<Threads>), kRowBlock<Threads>, 0, stream>>>(arguments);
  };
  if (!can_stay_in_registers(arguments) || !with_group<T>(arguments.columns, in_registers)) {
    norm_strided<T><<<row_blocks(arguments.row_count, 1), kStridedThreads, 0, stream>>>(arguments);
  }
  check_launch("a norm kernel");
}

}  // namespace fuseconv::cuda
