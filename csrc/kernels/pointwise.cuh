// y = formula(x...) element by element, broadcasting, over tensors of any strides.
//
// One kernel: a thread takes a run of elements of the innermost axis, 16 bytes of them where every operand is dense or
// constant along that axis and aligned, else one; and several such runs, so that many loads are in flight.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/cuda.cuh"
#include "core/layout.h"

namespace fuseconv::cuda {

// Quotients by a number known to the host. For 32-bit numbers below 2^31 by one multiplication (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994); for wider ones by division.
template <class Index>
struct Divisor;

template <>
struct Divisor<uint32_t> {
  uint32_t divisor, multiplier, shift;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(static_cast<uint32_t>(d)), shift(0) {
    while ((uint64_t{1} << shift) < divisor) {
      ++shift;
    }
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

template <>
struct Divisor<int64_t> {
  int64_t divisor;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(d) {}
  __device__ __forceinline__ int64_t quotient(int64_t n) const { return n / divisor; }
};

// The index space in runs. Strides are those of a run's first element; the innermost axis counts runs.
template <class T, class Index, int Operands>
struct PointwiseArguments {
  int32_t rank;
  Index runs;
  Divisor<Index> sizes[kMaxRank];
  int64_t strides[Operands][kMaxRank];
  bool constant[Operands];  // along the innermost axis
  T* y;
  const T* x[Operands - 1];
};

inline constexpr int kPointwiseThreads = 256;

template <class T, int Size>
__device__ __forceinline__ Vector<T, Size> load_run(const T* x, bool constant) {
  if constexpr (Size > 1) {
    if (constant) {
      const T value = *x;
      Vector<T, Size> run;
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        run.values[i] = value;
      }
      return run;
    }
  }
  return *reinterpret_cast<const Vector<T, Size>*>(x);
}

template <class Formula, class T, class Index, int Size, int Unroll, int... I>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_kernel(const __grid_constant__ PointwiseArguments<T, Index, sizeof...(I) + 1> arguments,
                     std::integer_sequence<int, I...>) {
  constexpr int kInputs = sizeof...(I);
  const Formula formula{};
  const int64_t tile = static_cast<int64_t>(kPointwiseThreads) * Unroll;
  for (int64_t start = blockIdx.x * tile; start < arguments.runs; start += gridDim.x * tile) {
    int64_t offsets[Unroll];
    Vector<T, Size> inputs[Unroll][kInputs];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int64_t run = start + u * kPointwiseThreads + threadIdx.x;
      if (run >= arguments.runs) {
        continue;
      }
      int64_t offset[kInputs + 1] = {};
      Index rest = static_cast<Index>(run);
#pragma unroll 1
      for (int axis = arguments.rank - 1; axis > 0; --axis) {
        const Index quotient = arguments.sizes[axis].quotient(rest);
        const int64_t position = rest - quotient * arguments.sizes[axis].divisor;
        rest = quotient;
#pragma unroll
        for (int operand = 0; operand <= kInputs; ++operand) {
          offset[operand] += position * arguments.strides[operand][axis];
        }
      }
      offsets[u] = offset[0] + static_cast<int64_t>(rest) * arguments.strides[0][0];
      ((inputs[u][I] =
            load_run<T, Size>(arguments.x[I] + offset[I + 1] + static_cast<int64_t>(rest) * arguments.strides[I + 1][0],
                              arguments.constant[I + 1])),
       ...);
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      if (start + u * kPointwiseThreads + threadIdx.x >= arguments.runs) {
        continue;
      }
      Vector<T, Size> results;
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        results.values[i] = narrow<T>(formula(widen(inputs[u][I].values[i])...));
      }
      *reinterpret_cast<Vector<T, Size>*>(arguments.y + offsets[u]) = results;
    }
  }
}

template <class Formula, class T, class Index, int Size, int Unroll, int Inputs>
void launch_pointwise(CudaHost& host, const Loop& loop, void* y, const std::array<const void*, Inputs>& x) {
  PointwiseArguments<T, Index, Inputs + 1> arguments{};
  const int inner = loop.rank - 1;
  arguments.rank = loop.rank;
  arguments.runs = static_cast<Index>(loop.count() / Size);
  arguments.y = static_cast<T*>(y);
  for (int axis = 0; axis <= inner; ++axis) {
    const int64_t run = axis == inner ? Size : 1;
    arguments.sizes[axis] = Divisor<Index>(loop.sizes[axis] / run);
    for (int operand = 0; operand <= Inputs; ++operand) {
      arguments.strides[operand][axis] = loop.strides[operand][axis] * run;
    }
  }
  for (int operand = 0; operand <= Inputs; ++operand) {
    arguments.constant[operand] = loop.strides[operand][inner] == 0;
  }
  for (int i = 0; i < Inputs; ++i) {
    arguments.x[i] = static_cast<const T*>(x[i]);
  }
  const int64_t tile = static_cast<int64_t>(kPointwiseThreads) * Unroll;
  const int64_t blocks = std::min((static_cast<int64_t>(arguments.runs) + tile - 1) / tile, kMaxBlocks);
  pointwise_kernel<Formula, T, Index, Size, Unroll>
      <<<blocks, kPointwiseThreads, 0, stream_of(host)>>>(arguments, std::make_integer_sequence<int, Inputs>{});
  check_launch("a pointwise kernel");
}

// Whether runs of `size` elements along the innermost axis are aligned in every operand.
template <class T, size_t Inputs>
bool has_aligned_runs(const Loop& loop, const void* y, const std::array<const void*, Inputs>& x, int size) {
  const int inner = loop.rank - 1;
  bool aligned = loop.sizes[inner] % size == 0 && loop.strides[0][inner] == 1;
  for (size_t operand = 0; operand <= Inputs; ++operand) {
    if (loop.strides[operand][inner] == 0) {
      continue;
    }
    aligned &= loop.strides[operand][inner] == 1 && is_aligned(operand == 0 ? y : x[operand - 1]);
    for (int axis = 0; axis < inner; ++axis) {
      aligned &= loop.strides[operand][axis] % size == 0;
    }
  }
  return aligned;
}

template <class Formula, class... Inputs>
void pointwise(CudaHost& host, const Formula&, Out y, Inputs... inputs) {
  static_assert(std::is_empty_v<Formula>, "the kernel makes the formula itself");
  constexpr int kInputs = sizeof...(Inputs);
  static_assert((std::is_same_v<Inputs, In> && ...) && kInputs < kMaxOperands);
  const Loop loop = element_loop(y, {inputs...});
  const int64_t count = loop.count();
  if (count == 0) {
    return;
  }
  const std::array<const void*, kInputs> x{inputs.data...};
  // The multiplication that divides is right below 2^31, also after the last step of a grid.
  constexpr int64_t kNarrow = int64_t{1} << 31;
  dispatch(y.dtype, [&]<class T>(T) {
    if (count / kVectorSize<T> < kNarrow && has_aligned_runs<T>(loop, y.data, x, kVectorSize<T>)) {
      launch_pointwise<Formula, T, uint32_t, kVectorSize<T>, 4, kInputs>(host, loop, y.data, x);
    } else if (count < kNarrow) {
      launch_pointwise<Formula, T, uint32_t, 1, 4, kInputs>(host, loop, y.data, x);
    } else {
      launch_pointwise<Formula, T, int64_t, 1, 4, kInputs>(host, loop, y.data, x);
    }
  });
}

}  // namespace fuseconv::cuda
