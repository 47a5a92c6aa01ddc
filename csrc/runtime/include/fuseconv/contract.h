// The input contract of fuseconv/contract.py: the same check on every call, with the same words.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

// A size: static, or a symbolic dim, which has one size wherever it is named.
struct Size {
  int64_t value;     // of a static one
  std::string name;  // empty for a static one
  int64_t min, max;
};

struct TensorSpec {
  std::string name, dtype;
  std::vector<Size> shape;
};

struct Contract {
  std::vector<TensorSpec> inputs;
  std::vector<std::string> outputs;
  std::string device;

  // The tensors in the order of the inputs. Throws Error of kind contract.
  std::vector<const Tensor*> bind(const NamedTensors& tensors) const;
};

}  // namespace fuseconv::runtime
