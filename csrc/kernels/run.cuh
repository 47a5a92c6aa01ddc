// Runs: neighbouring elements that a thread reads or writes with one instruction.
//
// A run stays the words that it is in memory until it is computed with. Taken apart into 16-bit elements where it is
// loaded, it would cost three instructions a pair instead of two, one more for each element that may have to be zero
// instead, and a wait at each load.
#pragma once

#include <cstring>

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

// Ways to load a run of 16 bytes. A row that passes once through a processor's own cache drives out the weights that it
// needs for every row, if nothing says which lines to keep (PTX ISA 8.0, ld.L1::no_allocate and L1::evict_last).
struct Load {
  template <class T>
  __device__ __forceinline__ Run<T> operator()(const T* x) const {
    return load_run(x);
  }
};
struct LoadPassing {
  template <class T>
  __device__ __forceinline__ Run<T> operator()(const T* x) const {
    uint4 bits;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(x)
                 : "memory");
    Run<T> run;
    memcpy(&run, &bits, sizeof bits);
    return run;
  }
};
// Of memory that nobody writes meanwhile.
struct LoadKept {
  template <class T>
  __device__ __forceinline__ Run<T> operator()(const T* x) const {
    uint4 bits;
    asm("ld.global.nc.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(x));
    Run<T> run;
    memcpy(&run, &bits, sizeof bits);
    return run;
  }
};

// A streamed run marks its lines as the first to go from the caches.
template <class T, int Size>
__device__ __forceinline__ void store_run(T* y, const Run<T, Size>& run, bool streamed) {
  if constexpr (sizeof run == sizeof(uint4)) {
    if (streamed) {
      uint4 bits;
      memcpy(&bits, &run, sizeof bits);
      __stcs(reinterpret_cast<uint4*>(y), bits);
      return;
    }
  }
  *reinterpret_cast<Run<T, Size>*>(y) = run;
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

// Rounds; two elements an instruction in f16 and bf16.
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
