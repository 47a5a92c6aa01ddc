// Converts CUDA status codes to exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace fuseconv::linear {

inline void cuda_check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("fuseconv: ") + call + ": " + cudaGetErrorString(status));
  }
}

// An attribute of the current device.
inline int device_attribute(cudaDeviceAttr name) {
  int device, value;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace fuseconv::linear
