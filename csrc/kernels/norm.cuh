// The norms of kernels/norm.h on CUDA.
//
// Rows that are dense, aligned and not too long stay in the registers of a group of threads between the passes, so that
// they are read only once. Rows that lie across memory are also read only once (norm_across.cuh). All other rows use a
// kernel that reads them two or three times, usually from cache.
#pragma once

#include "arch/math.cuh"
#include "core/activation.h"
#include "kernels/norm_across.cuh"
#include "kernels/norm_arguments.cuh"

namespace fuseconv::cuda {

// Calls body(activate), where activate(values) applies the activation to an array in place. The branch that selects the
// activation encloses the whole body, so that it does not separate the body's loads.
template <class T, class Body>
__device__ __forceinline__ void with_activation(Activation activation, Body body) {
  const auto each = [&](auto function) {
    body([&](auto& values) {
#pragma unroll
      for (auto& value : values) {
        value = function(value);
      }
    });
  };
  dispatch(activation, [&]<class Act>(Act act) {
    if constexpr (std::is_same_v<Act, Relu> && sizeof(T) != 8) {
      each([](float x) { return arch::relu(x); });
    } else if constexpr (sizeof(T) == 2 && !std::is_same_v<Act, Identity>) {
      each([&](float x) { return act(Coarse(x)).value; });
    } else {
      each(act);
    }
  });
}

// The number of registers per thread besides those for its row. This is about the minimum without spills on an H200.
template <class T, bool kResidual, int Threads>
constexpr int other_registers() {
  if (sizeof(T) == 2) {
    return 36;
  }
  if (kResidual) {
    return 48;
  }
  return sizeof(T) == 4 && Threads == 512 ? 24 : 32;
}

// Computes the norm of rows of at most Threads * Chunks runs, which stay in registers.
//
// f16 and bf16 values stay in registers as 16-bit values, and x and the residual stay there separately, because their
// sum has more than 16 bits. This halves the number of registers and doubles the number of rows in flight, which
// outweighs the cost of widening all values twice.
template <class T, bool kResidual, int Threads, int Chunks>
__global__ void __launch_bounds__(kRowBlock<Threads>,
                                  kResidentBlocks<Threads, Chunks * kVectorBytes*(kResidual && sizeof(T) == 2 ? 2 : 1),
                                                  other_registers<T, kResidual, Threads>()>)
    norm_in_registers(const __grid_constant__ NormArguments<T> a) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  constexpr bool kApart = kResidual && sizeof(T) == 2;
  const int lane = threadIdx.x % Threads;
  const int columns = static_cast<int>(a.columns);
  Group<Threads> group;
  const auto [index, active] = row_of_block<Threads>(a.row_count);
  int64_t offsets[4];
  row_offsets(a.rows, index, offsets);
  Run<T> x[Chunks], residual[kResidual ? Chunks : 1];
  fetch_row<T, Threads>(read_once(a.x + offsets[1], a.large), x, lane, columns, A(0));
  A first = sizeof(T) == 2 ? widen(a.x[offsets[1]]) : A(0);
  if constexpr (kResidual) {
    fetch_row<T, Threads>(read_once(a.residual + offsets[2], a.large), residual, lane, columns, A(0));
    first += sizeof(T) == 2 ? widen(a.residual[offsets[2]]) : A(0);
  }
  if constexpr (kResidual && !kApart) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        x[chunk].words[i] += residual[chunk].words[i];
      }
    }
  }
  const auto values = [&](int chunk, A(&v)[kSize]) {
    widen_run(x[chunk], v);
    if constexpr (kApart) {
      A added[kSize];
      widen_run(residual[chunk], added);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        v[i] += added[i];
      }
    }
  };
  const Moments<A> m = moments_of_row<T, Threads, Chunks>(group, a.norm, values, first, lane, columns);
  // The center has few significant bits, so that its product with the factor is as accurate as the 16-bit result
  // requires.
  const A shift = fma(-m.center, m.factor, m.offset);
  const auto finish = [&](auto activate) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const int column = (chunk * Threads + lane) * kSize;
      if (!active || column >= columns) {
        continue;
      }
      A v[kSize], weight[kSize], bias[kSize];
      values(chunk, v);
      if (kResidual && a.sum != nullptr) {
        store_run(a.sum + offsets[3] + column, narrow_run<T>(v));
      }
      // -0 takes the place of a missing bias, because adding -0 does not change the sign of a zero.
      widen_run(a.weight == nullptr ? constant_run(narrow<T>(A(1))) : load_run(a.weight + column), weight);
      widen_run(a.bias == nullptr ? constant_run(narrow<T>(A(-0.0))) : load_run(a.bias + column), bias);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const A normalised = sizeof(T) == 2 ? fma(v[i], m.factor, shift) : m.normalised(v[i]);
        v[i] = fma(normalised, weight[i], bias[i]);
      }
      activate(v);
      store_run(a.y + offsets[0] + column, narrow_run<T>(v));
    }
  };
  // No norm with a residual has an activation.
  if constexpr (kResidual) {
    finish([](A(&)[kSize]) {});
  } else {
    with_activation<T>(a.activation, finish);
  }
}

inline constexpr int kStridedThreads = 256;

// Computes the norm of rows of any length and with any strides, one block per row.
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
      const A value = fma(m.normalised(s), scale, shift);
      a.y[offsets[0] + column * a.column_strides[0]] = narrow<T>(AnyActivation{a.activation}(value));
    }
  }
}

template <class T>
bool can_stay_in_registers(const NormArguments<T>& a) {
  const void* data[] = {a.y, a.x, a.residual, a.sum};
  bool can = a.columns % kVectorSize<T> == 0;
  for (int operand = 0; operand < 4; ++operand) {
    can &= data[operand] == nullptr || has_aligned_rows<T>(a.rows, operand, a.column_strides[operand], data[operand]);
  }
  // A null pointer counts as aligned.
  return can && a.weight_stride == 1 && is_aligned(a.weight) && a.bias_stride == 1 && is_aligned(a.bias);
}

template <class T>
void run_norm(CudaHost& host, const Norm& norm) {
  const cudaStream_t stream = stream_of(host);
  const NormArguments<T> arguments = arguments_of<T>(norm);
  const auto in_registers = [&]<int Threads, int Chunks>() {
    const auto kernel = arguments.residual == nullptr ? &norm_in_registers<T, false, Threads, Chunks>
                                                      : &norm_in_registers<T, true, Threads, Chunks>;
    kernel<<<row_grid<Threads>(arguments.row_count), kRowBlock<Threads>, 0, stream>>>(arguments);
  };
  const bool runs = (can_stay_in_registers(arguments) && with_group<T>(arguments.columns, in_registers)) ||
                    run_across(arguments, stream);
  if (!runs) {
    norm_strided<T><<<row_blocks(arguments.row_count, 1), kStridedThreads, 0, stream>>>(arguments);
  }
  check_launch("a norm kernel");
}

}  // namespace fuseconv::cuda
