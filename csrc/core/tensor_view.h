// Tensors as the kernels see them: plain views that need no framework. Sizes and strides are in elements.
#pragma once

#include <cstdint>

namespace fuseconv {

// The maximum number of dims, more than any layer needs. Bindings reject a tensor with more dims.
inline constexpr int kMaxRank = 16;

// The four dtypes in which kernels compute, and i64 for values that are passed in a tensor, such as a seed.
enum class Dtype : int32_t { f32, f64, f16, bf16, i64, other };

// Returns the number of bytes per element.
constexpr int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// A view of a tensor that a kernel reads. The host owns the data and the two arrays of `rank` numbers, which live until
// the end of the call.
struct In {
  const void* data;
  Dtype dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
};

// An i64 tensor that is passed to an op which computes in another dtype.
struct InI64 : In {
  InI64(In tensor) : In(tensor) {}
};

// A view of a tensor that a kernel writes. The host allocates the tensor as the op's `outputs` describes; its memory is
// uninitialized.
struct Out {
  void* data;
  Dtype dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;

  operator In() const { return {data, dtype, rank, sizes, strides}; }
};

// A tensor that an op asks the host to allocate. Also describes the shape of a tensor that does not exist yet.
struct Spec {
  Dtype dtype;
  int32_t rank;
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];

  operator In() const { return {nullptr, dtype, rank, sizes, strides}; }
};

}  // namespace fuseconv
