// Tensors as the kernels see them: plain views without a framework. Sizes and strides are in elements.
#pragma once

#include <cstdint>

namespace fuseconv {

// More dims than any layer has. Bindings reject a tensor with more.
inline constexpr int kMaxRank = 16;

// The four dtypes that kernels compute in, and i64 for values such as a seed that are passed in a tensor.
enum class Dtype : int32_t { f32, f64, f16, bf16, i64, other };

// Bytes of an element.
constexpr int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// A tensor that is read. The host owns the data and the two arrays of `rank` numbers until the end of the call.
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

// A tensor that is written: uninitialized, allocated by the host as described by `outputs`.
struct Out {
  void* data;
  Dtype dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;

  operator In() const { return {data, dtype, rank, sizes, strides}; }
};

// A tensor that an op asks the host to allocate. Also used as the shape of a tensor that does not exist yet.
struct Spec {
  Dtype dtype;
  int32_t rank;
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];

  operator In() const { return {nullptr, dtype, rank, sizes, strides}; }
};

}  // namespace fuseconv
