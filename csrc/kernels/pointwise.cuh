// y = formula(x...) element by element, broadcasting, over tensors of any strides.
//
// One kernel: a thread takes a run of elements of the innermost axis, 16 bytes of them where every operand is dense or
// constant along that axis and aligned, else one, and then several of those, so that many loads are in flight. Formulas
// of f16 and bf16 are computed with core/coarse.cuh.
#pragma once

#include <cuda/std/tuple>
#include <utility>

#include "core/coarse.cuh"
#include "core/cuda.cuh"
#include "core/layout.h"
#include "kernels/index.cuh"

namespace fuseconv::cuda {

inline constexpr int kPointwiseThreads = 256;

// Runs a thread takes. Of 16 bytes one is best: more occupy registers that other threads would have loads in flight
// with.
template <int Size>
inline constexpr int kPointwiseUnroll = Size == 1 ? 4 : 1;

// A larger result than the second-level cache of any GPU holds goes past it: nothing reads it from there.
inline constexpr int64_t kStreamedBytes = int64_t{64} << 20;

// An operand of a formula is an object with two members. `fetch<Size>(offset)` starts what takes long, and
// `values<T, Size>(fetched)` makes of it the values that the formula takes. This one is a tensor.
template <class T>
struct TensorOperand {
  const T* data;
  bool constant;  // along the innermost axis

  template <int Size>
  __device__ __forceinline__ Vector<T, Size> fetch(int64_t offset) const {
    if constexpr (Size > 1) {
      if (constant) {
        const T value = data[offset];
        Vector<T, Size> run;
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          run.values[i] = value;
        }
        return run;
      }
    }
    return *reinterpret_cast<const Vector<T, Size>*>(data + offset);
  }

  template <class, int Size>
  static __device__ __forceinline__ Vector<FormulaType<T>, Size> values(const Vector<T, Size>& run) {
    Vector<FormulaType<T>, Size> result;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      result.values[i] = to_formula(run.values[i]);
    }
    return result;
  }
};

template <class T, int Size>
__device__ __forceinline__ void store_run(T* y, const Vector<T, Size>& run, bool streamed) {
  if constexpr (sizeof run == sizeof(int4)) {
    if (streamed) {
      int4 bits;
      memcpy(&bits, &run, sizeof bits);
      __stcs(reinterpret_cast<int4*>(y), bits);
      return;
    }
  }
  *reinterpret_cast<Vector<T, Size>*>(y) = run;
}

template <class Formula, int Size, class T, class Index, class... Operands, int... I>
__device__ __forceinline__ void run_pointwise(const IndexSpace<Index, sizeof...(Operands) + 1>& space, T* y,
                                              bool streamed, std::integer_sequence<int, I...>,
                                              const Operands&... operands) {
  constexpr int kUnroll = kPointwiseUnroll<Size>;
  using Fetched = ::cuda::std::tuple<decltype(operands.template fetch<Size>(0))...>;
  const Index first = static_cast<Index>(blockIdx.x) * (kPointwiseThreads * kUnroll) + threadIdx.x;
  int64_t offsets[kUnroll][sizeof...(Operands) + 1] = {};
  Fetched fetched[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index run = first + u * kPointwiseThreads;
    if (run < space.count) {
      space.locate(run, offsets[u]);
      ((::cuda::std::get<I>(fetched[u]) = operands.template fetch<Size>(offsets[u][I + 1])), ...);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (first + u * kPointwiseThreads < space.count) {
      const ::cuda::std::tuple inputs(operands.template values<T, Size>(::cuda::std::get<I>(fetched[u]))...);
      Vector<FormulaType<T>, Size> results;
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        results.values[i] = Formula{}(::cuda::std::get<I>(inputs).values[i]...);
      }
      store_run(y + offsets[u][0], from_formula<T, Size>(results), streamed);
    }
  }
}

template <class Formula, class T, class Index, int Size, class... Operands>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_kernel(const __grid_constant__ IndexSpace<Index, sizeof...(Operands) + 1> space, T* y, bool streamed,
                     const __grid_constant__ Operands... operands) {
  run_pointwise<Formula, Size>(space, y, streamed, std::make_integer_sequence<int, sizeof...(Operands)>{}, operands...);
}

template <class T>
TensorOperand<T> operand(const Loop& loop, int index, const In& tensor) {
  return {static_cast<const T*>(tensor.data), loop.strides[index][loop.rank - 1] == 0};
}
template <class T, class Source>
Source operand(const Loop&, int, const Source& source) {
  return source;
}

inline const void* memory_of(const In& tensor) { return tensor.data; }
template <class Source>
const void* memory_of(const Source&) {
  return nullptr;
}

template <class Formula, class T, class Index, int Size, class... Inputs, int... I>
void launch_pointwise(CudaHost& host, const Loop& loop, void* y, std::integer_sequence<int, I...>,
                      const Inputs&... inputs) {
  const IndexSpace<Index, sizeof...(Inputs) + 1> space(loop, Size);
  constexpr int kTile = kPointwiseThreads * kPointwiseUnroll<Size>;
  const int64_t blocks = (static_cast<int64_t>(space.count) + kTile - 1) / kTile;
  const bool streamed = loop.count() * static_cast<int64_t>(sizeof(T)) > kStreamedBytes;
  pointwise_kernel<Formula, T, Index, Size><<<blocks, kPointwiseThreads, 0, stream_of(host)>>>(
      space, static_cast<T*>(y), streamed, operand<T>(loop, I + 1, inputs)...);
  check_launch("a pointwise kernel");
}

// Inputs are tensors, or operands that make values from row-major indices (kernels/philox.cuh).
template <class Formula, class... Inputs>
void pointwise(CudaHost& host, const Formula&, Out y, const Inputs&... inputs) {
  static_assert(std::is_empty_v<Formula>, "the kernel makes the formula itself");
  static_assert(sizeof...(Inputs) < kMaxOperands);
  const Spec row_major = contiguous_like(y);
  const Loop loop = element_loop(y, {places(inputs, row_major)...});
  if (loop.count() == 0) {
    return;
  }
  constexpr std::make_integer_sequence<int, sizeof...(Inputs)> sequence{};
  dispatch(y.dtype, [&]<class T>(T) {
    constexpr int kSize = kVectorSize<T>;
    const void* const memory[] = {y.data, memory_of(inputs)...};
    bool aligned = loop.sizes[loop.rank - 1] % kSize == 0 && loop.strides[0][loop.rank - 1] == 1;
    for (int operand = 0; operand <= static_cast<int>(sizeof...(Inputs)); ++operand) {
      aligned &= has_aligned_runs<T>(loop, operand, memory[operand], kSize);
    }
    if (aligned && fits_32_bits(loop, sizeof...(Inputs) + 1, kSize)) {
      launch_pointwise<Formula, T, uint32_t, kSize>(host, loop, y.data, sequence, inputs...);
    } else if (fits_32_bits(loop, sizeof...(Inputs) + 1, 1)) {
      launch_pointwise<Formula, T, uint32_t, 1>(host, loop, y.data, sequence, inputs...);
    } else {
      launch_pointwise<Formula, T, int64_t, 1>(host, loop, y.data, sequence, inputs...);
    }
  });
}

}  // namespace fuseconv::cuda
