// Pairs of 16-bit elements in one 32-bit register.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fuseconv::arch {

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t pack(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// Loads two elements from a 4-byte aligned address if `inside`, else returns zeros. Does not branch.
__device__ __forceinline__ uint32_t load_pair(const void* at, bool inside) {
  uint32_t pair;
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.b32 %0, [%1];\n"
      "}"
      : "=r"(pair)
      : "l"(at), "r"(static_cast<int>(inside)));
  return pair;
}

}  // namespace fuseconv::arch
