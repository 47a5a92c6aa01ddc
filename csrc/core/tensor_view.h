// Tensors as the kernels see them: plain views, with no framework behind them. Sizes and strides are in elements.
#pragma once

#include <cstdint>

namespace fuseconv {

// More dims than any layer has; bindings refuse a tensor that has more.
inline constexpr int kMaxRank = 16;

// The four that kernels compute in; i64 for what an op is told in a tensor, as a seed is.
enum class Dtype : int32_t { f32, f64, f16, bf16, i64, other };

// Bytes of an element.
constexpr int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// A tensor that is read. The host owns the data and the two arrays of `rank` numbers for the length of the call.
struct In {
  const void* data;
  Dtype dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
};

// A tensor of i64, which says something to an op that computes in another dtype.
struct InI64 : In {
  InI64(In tensor) : In(tensor) {}
};

// A tensor that is written: allocated by the host as `outputs` asked, uninitialised.
struct Out {
  void* data;
  Dtype dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;

  operator In() const { return {data, dtype, rank, sizes, strides}; }
};

// What an op asks the host to allocate. Also the shape of a tensor that does not exist yet.
struct Spec {
  Dtype dtype;
  int32_t rank;
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];

  operator In() const { return {nullptr, dtype, rank, sizes, strides}; }
};

}  // namespace fuseconv
