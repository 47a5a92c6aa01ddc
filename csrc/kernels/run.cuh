// Defines runs: adjacent elements that a thread reads or writes with one instruction.
//
// A run stays in registers as the words loaded from memory until it is used in a computation. Unpacking 16-bit elements
// at the load would cost three instructions per pair instead of two, one more instruction for each element that may
// have to be replaced by zero, and a wait at each load.
#pragma once

#include <cstring>

#include "arch/l2.cuh"
#include "core/cuda.cuh"

namespace fuseconv::cuda {

template <class T, int Size = kVectorSize<T>>
struct alignas(Size * sizeof(T)) Run {
  static constexpr bool kPairs = sizeof(T) == 2 && Size % 2 == 0;
  using Word = std::conditional_t<kPairs, uint32_t, T>;
  static constexpr int kWords = kPairs ? Size / 2 : Size;

  Word words[kWords];
};

template <int Size, class T>
__device__ __forceinline__ Run<T, Size> load_run(const T* x) {
  return *reinterpret_cast<const Run<T, Size>*>(x);
}
template <class T>
__device__ __forceinline__ Run<T> load_run(const T* x) {
  return load_run<kVectorSize<T>>(x);
}

// Returns whether a tensor of this many bytes is too large to stay in L2: larger than the L2 of a Hopper GPU.
inline bool is_large(int64_t bytes) { return bytes > int64_t{64} << 20; }

// Returns the pointer x, if `large` with the property that L2 keeps the lines of x longer than the lines of the result.
// This is for a large tensor of which each cache line is read once while another tensor is written. The lines are not
// used again, but a norm takes 3 to 4 % less time, probably because results leave L2 sooner
// (docs/performance/memory-bound.md, "What made the difference").
template <class T>
__device__ __forceinline__ const T* read_once(const T* x, bool large) {
  return arch::with_policy(x, large ? arch::kEvictLast : arch::kEvictNormal);
}

// Stores a run. A streamed run marks its lines as the first to be evicted from the caches. A run of 16 bytes is stored
// as one vector. Otherwise the compiler may emit four stores, each of which starts as soon as its word is ready.
template <class T, int Size>
__device__ __forceinline__ void store_run(T* y, const Run<T, Size>& run, bool streamed = false) {
  if constexpr (sizeof run == sizeof(uint4)) {
    uint4 bits;
    memcpy(&bits, &run, sizeof bits);
    if (streamed) {
      __stcs(reinterpret_cast<uint4*>(y), bits);
    } else {
      __stwb(reinterpret_cast<uint4*>(y), bits);
    }
  } else {
    *reinterpret_cast<Run<T, Size>*>(y) = run;
  }
}

template <class T, int Size = kVectorSize<T>>
__device__ __forceinline__ Run<T, Size> constant_run(T value) {
  using Result = Run<T, Size>;
  typename Result::Word word;
  if constexpr (Result::kPairs) {
    const T pair[2] = {value, value};
    memcpy(&word, pair, sizeof word);
  } else {
    word = value;
  }
  Result run;
#pragma unroll
  for (int i = 0; i < Result::kWords; ++i) {
    run.words[i] = word;
  }
  return run;
}

__device__ __forceinline__ float2 widen_pair(uint32_t word, __half) {
  __half2 pair;
  memcpy(&pair, &word, sizeof pair);
  return __half22float2(pair);
}
__device__ __forceinline__ float2 widen_pair(uint32_t word, __nv_bfloat16) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

__device__ __forceinline__ uint32_t narrow_pair(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
__device__ __forceinline__ uint32_t narrow_pair(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

template <class T, int Size>
__device__ __forceinline__ void widen_run(const Run<T, Size>& run, Compute<T> (&values)[Size]) {
#pragma unroll
  for (int i = 0; i < Run<T, Size>::kWords; ++i) {
    if constexpr (Run<T, Size>::kPairs) {
      const float2 pair = widen_pair(run.words[i], T{});
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    } else {
      values[i] = widen(run.words[i]);
    }
  }
}

// Rounds values to a run, in f16 and bf16 two elements per instruction.
template <class T, int Size>
__device__ __forceinline__ Run<T, Size> narrow_run(const Compute<T> (&values)[Size]) {
  Run<T, Size> run;
#pragma unroll
  for (int i = 0; i < Run<T, Size>::kWords; ++i) {
    if constexpr (Run<T, Size>::kPairs) {
      run.words[i] = narrow_pair(values[2 * i], values[2 * i + 1], T{});
    } else {
      run.words[i] = narrow<T>(values[i]);
    }
  }
  return run;
}

}  // namespace fuseconv::cuda
