// Approximations of the multi-function unit, and limits that keep a NaN (PTX ISA 7.0, sm_80).
#pragma once

namespace fuseconv::arch {

// 2^x, relative error 2^-22; 0 below the smallest normal number.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-23
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-20
__device__ __forceinline__ double reciprocal_approx(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

// Relative error 2^-11: below half a unit of bf16.
__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// max(x, 0); NaN if x is NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// NaN if an operand is NaN.
__device__ __forceinline__ float min(float x, float limit) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  return y;
}

}  // namespace fuseconv::arch
