// Tests whether a kernel propagates NaN. Its result is copied from the device after a call with an operand of NaN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "gemm/cuda_check.h"

namespace fuseconv::linear {

template <class T>
bool all_nan_of(const std::vector<char>& bytes) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, &bytes[i], sizeof(T));
    if (value == value) {
      return false;
    }
  }
  return true;
}

// Returns whether all elements are NaN. f16 has 5 exponent bits, and bf16 has 8.
inline bool all_nan(const std::vector<char>& bytes, Dtype dtype) {
  if (dtype == Dtype::f64) {
    return all_nan_of<double>(bytes);
  }
  if (dtype == Dtype::f32) {
    return all_nan_of<float>(bytes);
  }
  const uint16_t infinity = dtype == Dtype::f16 ? 0x7c00 : 0x7f80;
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, &bytes[i], 2);
    if ((bits & 0x7fff) <= infinity) {
      return false;
    }
  }
  return true;
}

// Returns whether the first `count` elements of y, and the `count` elements from `last` on, are all NaN once the work
// on the stream has ended.
inline bool ends_are_nan(const void* y, Dtype dtype, int64_t count, int64_t last, cudaStream_t stream) {
  const size_t element = static_cast<size_t>(size_of(dtype)), bytes = static_cast<size_t>(count) * element;
  std::vector<char> ends(2 * bytes);
  const char* const from = static_cast<const char*>(y);
  cuda_check(cudaMemcpyAsync(ends.data(), from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  cuda_check(cudaMemcpyAsync(ends.data() + bytes, from + static_cast<size_t>(last) * element, bytes,
                             cudaMemcpyDeviceToHost, stream),
             "cudaMemcpyAsync");
  cuda_check(cudaStreamSynchronize(stream), "a test of NaN");
  return all_nan(ends, dtype);
}

}  // namespace fuseconv::linear
