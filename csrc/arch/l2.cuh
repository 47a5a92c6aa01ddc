// The priorities of cache lines in L2 (PTX ISA 7.4, sm_80). <cuda/annotated_ptr> offers the same, but its headers take
// nvcc four seconds per file.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fuseconv::arch {

// The cache policies that createpolicy.fractional returns for all lines of a tensor.
inline constexpr uint64_t kEvictNormal = 0x10F0000000000000;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000;

// Returns a pointer to global memory whose loads and stores have a cache policy.
template <class T>
__device__ __forceinline__ const T* with_policy(const T* x, uint64_t policy) {
  __builtin_assume(__isGlobal(x));
  return static_cast<const T*>(__nv_associate_access_property(x, policy));
}

}  // namespace fuseconv::arch
