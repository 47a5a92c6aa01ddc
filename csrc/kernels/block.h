// Blocks are short dense runs of values in the compute type, small enough that several of them stay in the L1 cache.
// Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// With longer blocks, one operand is read for so long that the hardware stops prefetching the others.
inline constexpr int64_t kBlock = 256;

// Returns n elements, which start at x and are `stride` apart, in the compute type. Returns x itself if the elements
// are dense and already have the compute type. Otherwise converts them into the buffer and returns the buffer.
template <class T>
const Compute<T>* load_block(const T* x, int64_t stride, int64_t n, Compute<T>* buffer) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return x;
    } else {
      widen(x, buffer, n);
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

// Stores n elements, which start at x and are `stride` apart, in the buffer, in the compute type.
template <class T>
void copy_block(const T* x, int64_t stride, int64_t n, Compute<T>* buffer) {
  const Compute<T>* const values = load_block(x, stride, n, buffer);
  if (values != buffer) {
    std::copy_n(values, n, buffer);
  }
}

// Returns the memory into which a kernel writes its results for elements at y, `stride` apart. Returns y itself if the
// elements are dense and have the compute type, otherwise the buffer, which `store_block` then writes to y.
template <class T>
Compute<T>* result_block(T* y, int64_t stride, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return stride == 1 ? y : buffer;
  } else {
    return buffer;
  }
}

// Rounds n values, which are in the memory returned by `result_block`, and writes them to y. Does nothing if that
// memory is y itself.
template <class T>
void store_block(const Compute<T>* values, T* y, int64_t stride, int64_t n) {
  if (stride == 1) {
    if constexpr (!std::is_same_v<T, Compute<T>>) {
      narrow(values, y, n);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      y[i * stride] = narrow<T>(values[i]);
    }
  }
}

// Returns the memory for elements of type T that become dense values, or the other way round: that of the values, if
// these have the same type.
template <class T, class A>
T* dense_block(A* values, T* elements) {
  if constexpr (std::is_same_v<T, A>) {
    return values;
  } else {
    return elements;
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
