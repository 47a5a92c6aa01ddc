// The mean and the mean square of a row, or of its distances to the mean, on CUDA.
//
// The moments follow from distances to any center near the values; kernels/moments.h says how. In f32 and f64 it is the
// mean itself, rounded. For f16 and bf16 the first element of the row is near enough: it is at most sqrt(columns)
// standard deviations from the mean, and one pass and one exchange between threads are saved.
//
// An error of the factor is one of the whole row, and weighs as much as the roundings of its elements together. So for
// f32 what threads have summed is added up and finished in f64, once a row.
#pragma once

#include "core/coarse.cuh"
#include "kernels/rows.cuh"

namespace fuseconv::cuda {

// (s - center - correction) * factor, as (s - center) * factor + offset.
template <class A>
struct Moments {
  A center;
  A factor;
  A offset;

  __device__ __forceinline__ A normalised(A s) const { return fma(s - center, factor, offset); }
};

// What sums of threads are added up in.
template <class T>
using Total = std::conditional_t<sizeof(T) == 2, float, double>;

// What the moments of rows depend on, but for the rows.
template <class T>
struct RowNorm {
  Total<T> share;  // 1 / columns
  Total<T> eps;
  bool centred;

  RowNorm() = default;
  RowNorm(int64_t columns, double eps, bool centred)
      : share(static_cast<Total<T>>(1.0 / columns)), eps(static_cast<Total<T>>(eps)), centred(centred) {}

  // The mean, near enough: its last bits are dropped in f32, and the difference to an element is exact then, or nearly.
  __device__ __forceinline__ Compute<T> center(Total<T> total) const {
    const Total<T> mean = total * share;
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(__float_as_uint(static_cast<float>(mean)) & 0xffffff00u);
    } else {
      return mean;
    }
  }

  // From the sums of distances to the center and of their squares. In place of a zero the offset is -0, which changes
  // no sign.
  template <class A = Compute<T>>
  __device__ __forceinline__ Moments<A> moments(Compute<T> center, const Total<T> (&sums)[2]) const {
    const Total<T> correction = centred ? sums[0] * share : Total<T>(0);
    const Total<T> variance = sums[1] * share - correction * correction;
    // Written so that a NaN stays one.
    const Total<T> factor = rsqrt((variance < 0 ? 0 : variance) + eps);
    return {center, static_cast<A>(factor), static_cast<A>(-correction * factor)};
  }
};

// The moments of a row in registers. `values(chunk, v)` gives the elements that a thread has of a chunk, which are zero
// past the end of the row. `first` is the first element of the row, and is needed for f16 and bf16.
template <class T, int Threads, int Chunks, class Values>
__device__ __forceinline__ Moments<Compute<T>> moments_of_row(Group<Threads>& group, const RowNorm<T>& norm,
                                                              Values values, Compute<T> first, int lane, int columns) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  A center = 0;
  if (norm.centred) {
    center = first;
    if constexpr (sizeof(T) != 2) {
      A total = 0;
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        A v[kSize];
        values(chunk, v);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          total += v[i];
        }
      }
      center = norm.center(group.sum(static_cast<Total<T>>(total)));
    }
  }
  A distances = 0;
  A squares = 0;
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const A subtrahend = (chunk * Threads + lane) * kSize < columns ? center : A(0);
    A v[kSize];
    values(chunk, v);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const A distance = v[i] - subtrahend;
      distances += distance;
      squares += distance * distance;
    }
  }
  Total<T> sums[2] = {distances, squares};
  group.reduce(Add{}, sums);
  return norm.moments(center, sums);
}

// The same of a row in memory, `load(column)`, by the threads of a block.
template <class T, int Threads, class Load>
__device__ __forceinline__ Moments<Compute<T>> moments_of(Group<Threads>& group, const RowNorm<T>& norm, Load load,
                                                          int64_t columns) {
  using A = Compute<T>;
  A center = 0;
  if (norm.centred) {
    Total<T> total = 0;
    for (int64_t column = threadIdx.x; column < columns; column += Threads) {
      total += load(column);
    }
    center = norm.center(group.sum(total));
  }
  Total<T> sums[2] = {};
  for (int64_t column = threadIdx.x; column < columns; column += Threads) {
    const A distance = load(column) - center;
    sums[0] += distance;
    sums[1] += distance * distance;
  }
  group.reduce(Add{}, sums);
  return norm.moments(center, sums);
}

}  // namespace fuseconv::cuda
