// A dense tensor in host memory. Dtypes have the short names used in manifests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fuseconv::runtime {

struct Tensor {
  std::string dtype;  // f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool
  std::vector<int64_t> shape;
  std::vector<char> data;  // row-major; every call checks its size in bytes
};

using NamedTensors = std::map<std::string, Tensor>;

std::string shape_text(const std::vector<int64_t>& shape);  // such as "[2, 3]"

// Returns the number of bytes per element, or 0 if the name is not a dtype.
inline int64_t element_size(const std::string& dtype) {
  if (dtype == "f64" || dtype == "i64") {
    return 8;
  }
  if (dtype == "f32" || dtype == "i32") {
    return 4;
  }
  if (dtype == "f16" || dtype == "bf16" || dtype == "i16") {
    return 2;
  }
  return dtype == "i8" || dtype == "u8" || dtype == "bool" ? 1 : 0;
}

}  // namespace fuseconv::runtime
