// Computes the moments by which a row is normalized on CUDA: the mean and the variance, or the mean square if the norm
// is not centered.
//
// The moments follow from the distances to any origin that is not too far from the values; see kernels/moments.h. For
// f64, the origin is the rounded mean. For f16 and bf16, the first element of the row is close enough: it is at most
// sqrt(columns) standard deviations from the mean. For f32, the origin is 0, because the sums are in f64, where the
// square of an f32 is exact: a mean of 1000 standard deviations costs the variance 6 of its 16 digits. Therefore every
// dtype except f64 needs only one pass over a row and one exchange between the row's threads.
#pragma once

#include "core/coarse.cuh"
#include "kernels/rows.cuh"

namespace fuseconv::cuda {

// Represents (s - center - correction) * factor as (s - center) * factor + offset.
template <class A>
struct Moments {
  A center;
  A factor;
  A offset;

  __device__ __forceinline__ A normalised(A s) const { return fma(s - center, factor, offset); }
};

// The type in which the sums of different threads are added.
template <class T>
using Total = std::conditional_t<sizeof(T) == 2, float, double>;

// The parameters of the moments that are the same for all rows.
template <class T>
struct RowNorm {
  Total<T> share;  // 1 / columns
  Total<T> eps;
  bool centred;

  RowNorm() = default;
  RowNorm(int64_t columns, double eps, bool centred)
      : share(static_cast<Total<T>>(1.0 / columns)), eps(static_cast<Total<T>>(eps)), centred(centred) {}

  // Returns an approximation of the mean. In f32, its last bits are cleared, so that its difference from an element is
  // exact or nearly exact.
  __device__ __forceinline__ Compute<T> center(Total<T> mean) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(__float_as_uint(static_cast<float>(mean)) & 0xffffff00u);
    } else {
      return mean;
    }
  }

  // Adds the distance of an element to the origin: its contribution to the mean, and its square. The distance is scaled
  // before it is added, because a sum of distances could overflow where PyTorch, which updates the mean with each
  // element, does not.
  __device__ __forceinline__ void add(Total<T> distance, Total<T> (&sums)[2]) const {
    sums[0] += distance * share;
    sums[1] += distance * distance;
  }

  // Computes the moments from the mean distance to the origin and the sum of squared distances. An offset of zero is
  // -0, because adding -0 does not change the sign of a zero.
  template <class A = Compute<T>>
  __device__ __forceinline__ Moments<A> moments(Compute<T> origin, const Total<T> (&sums)[2]) const {
    const Total<T> distance = centred ? sums[0] : Total<T>(0);
    // Squares of bf16 overflow from 1e19 on. The factor is then 0, as in PyTorch, and not NaN.
    const Total<T> squares = sums[1] * share;
    const Total<T> variance = isinf(squares) ? squares : squares - distance * distance;
    // This comparison propagates NaN.
    const Total<T> factor = rsqrt((variance < 0 ? 0 : variance) + eps);
    const Compute<T> near = std::is_same_v<T, float> && centred ? center(origin + distance) : origin;
    const Total<T> correction = distance - (near - static_cast<Total<T>>(origin));
    return {near, static_cast<A>(factor), static_cast<A>(-correction * factor)};
  }
};

// Computes the moments of a row in registers. `values(chunk, v)` returns a thread's elements of a chunk, with zeros
// past the end of the row. `first` is the first element of the row; only f16 and bf16 need it.
template <class T, int Threads, int Chunks, class Values>
__device__ __forceinline__ Moments<Compute<T>> moments_of_row(Group<Threads>& group, const RowNorm<T>& norm,
                                                              Values values, Compute<T> first, int lane, int columns) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  A origin = std::is_same_v<T, float> || !norm.centred ? A(0) : first;
  if constexpr (std::is_same_v<T, double>) {
    if (norm.centred) {
      A total = 0;
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        A v[kSize];
        values(chunk, v);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          total += v[i] * norm.share;
        }
      }
      origin = group.sum(total);
    }
  }
  Total<T> sums[2] = {};
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const A subtrahend = (chunk * Threads + lane) * kSize < columns ? origin : A(0);
    A v[kSize];
    values(chunk, v);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      norm.add(std::is_same_v<T, float> ? v[i] : v[i] - subtrahend, sums);
    }
  }
  group.reduce(Add{}, sums);
  return norm.moments(origin, sums);
}

// Computes the moments of a row in memory, which the threads of a block read with `load(column)`.
template <class T, int Threads, class Load>
__device__ __forceinline__ Moments<Compute<T>> moments_of(Group<Threads>& group, const RowNorm<T>& norm, Load load,
                                                          int64_t columns) {
  using A = Compute<T>;
  A origin = 0;
  if (norm.centred && !std::is_same_v<T, float>) {
    Total<T> total = 0;
    for (int64_t column = threadIdx.x; column < columns; column += Threads) {
      total += load(column) * norm.share;
    }
    origin = group.sum(total);
  }
  Total<T> sums[2] = {};
  for (int64_t column = threadIdx.x; column < columns; column += Threads) {
    norm.add(load(column) - origin, sums);
  }
  group.reduce(Add{}, sums);
  return norm.moments(origin, sums);
}

}  // namespace fuseconv::cuda
