// Converts CUDA status codes to exceptions, and queries properties of the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace fuseconv::linear {

inline void cuda_check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("fuseconv: ") + call + ": " + cudaGetErrorString(status));
  }
}

// Returns an attribute of the current device.
inline int device_attribute(cudaDeviceAttr name) {
  int device, value;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

// Returns the name of the current device.
inline std::string device_name() {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  static std::mutex mutex;
  // not destroyed: kernels may run after static objects are destroyed
  static std::map<int, std::string>& names = *new std::map<int, std::string>;
  const std::lock_guard lock(mutex);
  std::string& name = names[device];
  if (name.empty()) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    name = properties.name;
  }
  return name;
}

}  // namespace fuseconv::linear
