// The mean and the mean square of a row, or of its distances to the mean, on CUDA.
//
// An error of the factor is one of the whole row, and weighs as much as the roundings of its elements together. So for
// f32 what threads have summed is added up and finished in f64, once a row. For f16 and bf16 approximations will do.
#pragma once

#include "core/coarse.cuh"
#include "kernels/rows.cuh"

namespace fuseconv::cuda {

// (s - center - correction) * factor, as s * factor + offset of s - center.
template <class A>
struct Moments {
  A center;
  A factor;
  A offset;
};

// What sums of threads are added up in.
template <class T>
using Total = std::conditional_t<sizeof(T) == 2, float, double>;

template <class T>
__device__ __forceinline__ Total<T> mean(Total<T> total, int64_t columns) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(total, static_cast<float>(columns));
  } else {
    return total / static_cast<double>(columns);
  }
}

// The mean, near enough: its last bits are dropped in f32, and the difference to an element is exact then, or nearly.
template <class T>
__device__ __forceinline__ Compute<T> center_of(Total<T> total, int64_t columns) {
  const Total<T> center = mean<T>(total, columns);
  if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(__float_as_uint(static_cast<float>(center)) & 0xffffff00u);
  } else {
    return center;
  }
}

// From the sums of distances to the center and of their squares; kernels/moments.h says why the correction. In place of
// a zero the offset is -0, which changes no sign.
template <class T>
__device__ __forceinline__ Moments<Compute<T>> finish_moments(Compute<T> center, const Total<T> (&sums)[2],
                                                              int64_t columns, Compute<T> eps) {
  const Total<T> correction = mean<T>(sums[0], columns);
  const Total<T> variance = mean<T>(sums[1], columns) - correction * correction;
  // Written so that a NaN stays one.
  const Total<T> factor = rsqrt((variance < 0 ? 0 : variance) + eps);
  return {center, static_cast<Compute<T>>(factor), static_cast<Compute<T>>(-correction * factor)};
}

// The moments of a row in registers, which becomes its distances to the center. What a thread holds past the end of the
// row is zero.
template <class T, int Threads, int Chunks>
__device__ __forceinline__ Moments<Compute<T>> center_row(Group<Threads>& group,
                                                          Compute<T> (&s)[Chunks][kVectorSize<T>], int lane,
                                                          int columns, Compute<T> eps, bool centred) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  A center = 0;
  A distances = 0;
  A squares = 0;
  if (centred) {
    A total = 0;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        total += s[chunk][i];
      }
    }
    center = center_of<T>(group.sum(static_cast<Total<T>>(total)), columns);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const A subtrahend = (chunk * Threads + lane) * kSize < columns ? center : A(0);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        s[chunk][i] -= subtrahend;
        distances += s[chunk][i];
        squares += s[chunk][i] * s[chunk][i];
      }
    }
  } else {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        squares += s[chunk][i] * s[chunk][i];
      }
    }
  }
  Total<T> sums[2] = {distances, squares};
  group.reduce(Add{}, sums);
  return finish_moments<T>(center, sums, columns, eps);
}

// The same of a row in memory, `load(column)`, by the threads of a block.
template <class T, int Threads, class Load>
__device__ __forceinline__ Moments<Compute<T>> moments_of(Group<Threads>& group, Load load, int64_t columns,
                                                          Compute<T> eps, bool centred) {
  using A = Compute<T>;
  A center = 0;
  if (centred) {
    Total<T> total = 0;
    for (int64_t column = threadIdx.x; column < columns; column += Threads) {
      total += load(column);
    }
    center = center_of<T>(group.sum(total), columns);
  }
  Total<T> sums[2] = {};
  for (int64_t column = threadIdx.x; column < columns; column += Threads) {
    const A distance = load(column) - center;
    sums[0] += centred ? distance : A(0);
    sums[1] += distance * distance;
  }
  group.reduce(Add{}, sums);
  return finish_moments<T>(center, sums, columns, eps);
}

}  // namespace fuseconv::cuda
