// Lets kernels use more dynamic shared memory than the 48 KiB that CUDA allows without being asked.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

#include "core/check.h"

namespace fuseconv {

// Lets launches of a kernel on the current device use `bytes` bytes of dynamic shared memory. CUDA is called once per
// device and kernel, because the call takes a large part of the time of a launch. Throws std::runtime_error if CUDA
// refuses.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes) {
  int device;
  const cudaError_t found = cudaGetDevice(&device);
  check(found == cudaSuccess, "fuseconv: cudaGetDevice: ", cudaGetErrorString(found));
  const void* const function = reinterpret_cast<const void*>(kernel);
  // not destroyed: kernels may run after static objects are destroyed
  static std::mutex& mutex = *new std::mutex;
  static auto& allowed = *new std::map<std::pair<int, const void*>, size_t>;
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{device, function}];
  if (bytes > most) {
    const cudaError_t set =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    check(set == cudaSuccess, "fuseconv: cudaFuncSetAttribute: ", cudaGetErrorString(set));
    most = bytes;
  }
}

}  // namespace fuseconv
