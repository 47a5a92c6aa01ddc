// Blocks are short dense runs of values in the compute type, small enough that several of them stay in the L1 cache.
// Compiled once per instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// With longer blocks, one operand is read for so long that the hardware stops prefetching the others.
inline constexpr int64_t kBlock = 256;

// Returns n values, in the compute type, of a run of elements `stride` apart. Returns the run itself if it is dense and
// of the compute type; otherwise fills and returns the buffer.
template <class T>
const Compute<T>* load_block(const T* x, int64_t stride, int64_t n, Compute<T>* buffer) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return x;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = widen(x[i]);
      }
    }
  } else if (stride == 0) {
    const Compute<T> value = widen(*x);
    for (int64_t i = 0; i < n; ++i) {
      buffer[i] = value;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      buffer[i] = widen(x[i * stride]);
    }
  }
  return buffer;
}

// Returns the destination of n results for a run of elements `stride` apart: the run itself, or the buffer.
template <class T>
Compute<T>* result_block(T* y, int64_t stride, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return stride == 1 ? y : buffer;
  } else {
    return buffer;
  }
}

// Rounds the results in `result_block` and writes them to the run. Does nothing if the results are already in the run.
template <class T>
void store_block(const Compute<T>* values, T* y, int64_t stride, int64_t n) {
  if (stride == 1) {
    if constexpr (!std::is_same_v<T, Compute<T>>) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        y[i] = narrow<T>(values[i]);
      }
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      y[i * stride] = narrow<T>(values[i]);
    }
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
