// Computes y = formula(x...), elementwise with broadcasting, over tensors with any strides.
//
// One kernel template serves all formulas and layouts. A thread computes runs along the innermost axis. A run has 16
// bytes if every operand is aligned and is dense or constant along that axis. Otherwise a run is one element, and a
// thread computes several runs, so that many loads are in flight. Indices have 32 bits, so a larger loop is cut into
// slabs. Formulas of f16 and bf16 are computed with core/coarse.cuh.
#pragma once

#include <array>
#include <cuda/std/tuple>
#include <utility>

#include "core/activation.h"
#include "core/coarse.cuh"
#include "core/layout.h"
#include "kernels/index.cuh"
#include "kernels/run.cuh"
#include "kernels/transpose.h"

namespace fuseconv::cuda {

inline constexpr int kPointwiseThreads = 128;

// The number of runs per thread. For 16-byte runs, one run is best: more runs need registers that other threads could
// use for loads in flight, and leave fewer threads for a small tensor. A formula that is compute-bound, because it has
// a member kCostly or is computed in f64, gets two runs, which share the formula's constants.
template <class Formula, class T, int Size>
inline constexpr int kPointwiseUnroll = Size == 1                                          ? 4
                                        : sizeof(T) == 8 || requires { Formula::kCostly; } ? 2
                                                                                           : 1;

// An operand of a formula is an object with two members. `fetch<Size>(offset)` issues the loads, and `values<T,
// Size>(fetched)` returns the values for the formula. This operand is a tensor.
template <class T>
struct TensorOperand {
  const T* data;
  bool constant;  // whether it is constant along the innermost axis
  bool large;

  template <int Size>
  __device__ __forceinline__ Run<T, Size> fetch(int64_t offset) const {
    if (Size > 1 && constant) {
      return constant_run<T, Size>(data[offset]);
    }
    return load_run<Size>(read_once(data + offset, large));
  }

  template <class, int Size>
  static __device__ __forceinline__ Vector<FormulaType<T>, Size> values(const Run<T, Size>& run) {
    Compute<T> wide[Size];
    widen_run(run, wide);
    Vector<FormulaType<T>, Size> result;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      result.values[i] = FormulaType<T>(wide[i]);
    }
    return result;
  }
};

template <class Formula, int Size, class T, class... Operands, int... I>
__device__ __forceinline__ void run_pointwise(const IndexSpace<uint32_t, sizeof...(Operands) + 1>& space,
                                              const Formula& formula, T* y, std::integer_sequence<int, I...>,
                                              const Operands&... operands) {
  constexpr int kUnroll = kPointwiseUnroll<Formula, T, Size>;
  using Fetched = ::cuda::std::tuple<decltype(operands.template fetch<Size>(0))...>;
  const uint32_t first = blockIdx.x * (kPointwiseThreads * kUnroll) + threadIdx.x;
  if (first >= space.count) {
    return;
  }
  int64_t offsets[kUnroll][sizeof...(Operands) + 1] = {};
  Fetched fetched[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t run = first + u * kPointwiseThreads;
    if (u == 0 || run < space.count) {
      space.locate(run, offsets[u]);
      ((::cuda::std::get<I>(fetched[u]) = operands.template fetch<Size>(offsets[u][I + 1])), ...);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (u == 0 || first + u * kPointwiseThreads < space.count) {
      const ::cuda::std::tuple inputs(operands.template values<T, Size>(::cuda::std::get<I>(fetched[u]))...);
      Compute<T> results[Size];
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        results[i] = value_of(formula(::cuda::std::get<I>(inputs).values[i]...));
      }
      store_run(y + offsets[u][0], narrow_run<T>(results));
    }
  }
}

template <class Formula, class T, int Size, class... Operands>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_kernel(const __grid_constant__ IndexSpace<uint32_t, sizeof...(Operands) + 1> space,
                     const __grid_constant__ Formula formula, T* y, const __grid_constant__ Operands... operands) {
  run_pointwise<Formula, Size>(space, formula, y, std::make_integer_sequence<int, sizeof...(Operands)>{}, operands...);
}

template <class T>
TensorOperand<T> operand(const Loop& loop, int index, const In& tensor, int64_t offset) {
  return {static_cast<const T*>(tensor.data) + offset, loop.strides[index][loop.rank - 1] == 0,
          is_large(element_count(tensor) * sizeof(T))};
}
template <class T, class Source>
Source operand(const Loop&, int, const Source& source, int64_t offset) {
  return source.from(offset);
}

inline const void* memory_of(const In& tensor) { return tensor.data; }
template <class Source>
const void* memory_of(const Source&) {
  return nullptr;
}

// Cuts a loop into slabs that 32-bit indices can traverse in runs of `run` elements, and calls body(slab, start offset
// in each operand) for each. Usually the only slab is the whole loop.
template <class Body>
void in_slabs(const Loop& loop, int operands, int run, std::array<int64_t, kMaxOperands> offsets, const Body& body) {
  if (fits_32_bits(loop, operands, run)) {
    return body(loop, offsets);
  }
  int axis = 0;
  while (loop.sizes[axis] == 1) {
    ++axis;
  }
  const int64_t step = axis == loop.rank - 1 ? run : 1;
  Loop slab = loop;
  slab.sizes[axis] = loop.sizes[axis] / step / 2 * step;
  in_slabs(slab, operands, run, offsets, body);
  for (int operand = 0; operand < operands; ++operand) {
    offsets[operand] += slab.sizes[axis] * loop.strides[operand][axis];
  }
  slab.sizes[axis] = loop.sizes[axis] - slab.sizes[axis];
  in_slabs(slab, operands, run, offsets, body);
}

template <class T, int Size, class Formula, class... Inputs, int... I>
void launch_pointwise(CudaHost& host, const Loop& loop, const Formula& formula, void* y,
                      std::integer_sequence<int, I...>, const Inputs&... inputs) {
  in_slabs(loop, sizeof...(Inputs) + 1, Size, {}, [&](const Loop& slab, const auto& offsets) {
    const IndexSpace<uint32_t, sizeof...(Inputs) + 1> space(slab, Size);
    constexpr int kTile = kPointwiseThreads * kPointwiseUnroll<Formula, T, Size>;
    const int64_t blocks = (static_cast<int64_t>(space.count) + kTile - 1) / kTile;
    pointwise_kernel<Formula, T, Size><<<blocks, kPointwiseThreads, 0, stream_of(host)>>>(
        space, formula, static_cast<T*>(y) + offsets[0], operand<T>(slab, I + 1, inputs, offsets[I + 1])...);
    check_launch("a pointwise kernel");
  });
}

// Inputs are tensors, or operands that compute values from row-major indices (kernels/philox.cuh). `fast` is the
// formula for aligned runs. `general` computes the same for all other layouts; it may look up at run time what `fast`
// has as a compile-time constant.
template <class Fast, class General, class... Inputs>
void pointwise_in_order(CudaHost& host, const Fast& fast, const General& general, Out y, const Inputs&... inputs) {
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
    if (aligned) {
      launch_pointwise<T, kSize>(host, loop, fast, y.data, sequence, inputs...);
    } else {
      launch_pointwise<T, 1>(host, loop, general, y.data, sequence, inputs...);
    }
  });
}

// Does the same as pointwise_in_order, but first copies inputs with another innermost dim than y into the layout of y.
template <class Fast, class General, class... Inputs>
void pointwise_by(CudaHost& host, const Fast& fast, const General& general, Out y, const Inputs&... inputs) {
  const auto ordered = [&](const auto& input) {
    if constexpr (std::is_same_v<std::decay_t<decltype(input)>, In>) {
      return in_layout_of(host, input, y);
    } else {
      return input;
    }
  };
  pointwise_in_order(host, fast, general, y, ordered(inputs)...);
}

template <class Formula, class... Inputs>
void pointwise(CudaHost& host, const Formula& formula, Out y, const Inputs&... inputs) {
  pointwise_by(host, formula, formula, y, inputs...);
}

// Computes a formula with an activation: `Formula<Act>` stores the activation as `act`.
template <template <class> class Formula, class... Inputs>
void activated_pointwise(CudaHost& host, Activation activation, Out y, const Inputs&... inputs) {
  dispatch(activation, [&]<class Act>(Act act) {
    pointwise_by(host, Formula<Act>{act}, Formula<AnyActivation>{{activation}}, y, inputs...);
  });
}

}  // namespace fuseconv::cuda
