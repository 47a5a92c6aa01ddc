// The definitions that all CUDA kernel files share: element types, vectors of elements, and checks of launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "core/check.h"
#include "core/host.h"
#include "core/tensor_view.h"

namespace fuseconv::cuda {

// The type in which a kernel computes.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
// Widens by a shift, because Hopper's conversion instruction has a fraction of the throughput of a shift: with it, sums
// of bf16 tensors reach half the bandwidth.
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(__bfloat16_as_ushort(x)) << 16);
}

template <class T>
__device__ __forceinline__ T narrow(Compute<T> x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// The N elements that a thread reads or writes with one instruction.
template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  T values[N];
};

inline constexpr int kVectorBytes = 16;

template <class T>
inline constexpr int kVectorSize = kVectorBytes / sizeof(T);

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

// The maximum number of blocks of a one-dimensional grid.
inline constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

inline void check_cuda(cudaError_t error, const char* call) {
  check(error == cudaSuccess, "fuseconv: ", call, ": ", cudaGetErrorString(error));
}

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  check(error == cudaSuccess, "fuseconv: launching ", kernel, " failed: ", cudaGetErrorString(error));
}

// The number of SMs of the current device.
inline int sm_count() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  const cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  check(error == cudaSuccess, "fuseconv: the number of SMs cannot be read: ", cudaGetErrorString(error));
  return count;
}

inline cudaStream_t stream_of(CudaHost& host) { return static_cast<cudaStream_t>(host.stream()); }

// Calls `function` with a value of the element type of `dtype`.
template <class Function>
void dispatch(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::f32:
      return function(float{});
    case Dtype::f64:
      return function(double{});
    case Dtype::f16:
      return function(__half{});
    case Dtype::bf16:
      return function(__nv_bfloat16{});
    case Dtype::i64:
    case Dtype::other:
      throw std::logic_error("fuseconv: a kernel was called with a dtype that outputs() did not refuse");
  }
}

}  // namespace fuseconv::cuda
