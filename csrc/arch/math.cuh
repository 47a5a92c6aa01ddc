// Approximations that the GPU's multi-function unit computes, and comparisons that propagate NaN (PTX ISA 7.0, sm_80).
#pragma once

namespace fuseconv::arch {

// 2^x with a relative error of 2^-22. Returns 0 below the smallest normal number.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x with a relative error of 2^-23.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x with a relative error of 2^-20.
__device__ __forceinline__ double reciprocal_approx(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

// tanh(x) with a relative error of 2^-11, which is less than half a unit in the last place of bf16.
__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// max(x, 0), or NaN if x is NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Returns the smaller operand, or NaN if an operand is NaN.
__device__ __forceinline__ float min(float x, float limit) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  return y;
}

}  // namespace fuseconv::arch
