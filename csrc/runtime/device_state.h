// The tensors of a State, in the form of the library that runs the artifact.
#pragma once

#include <utility>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

class DeviceState {
 public:
  virtual ~DeviceState() = default;
  virtual NamedTensors snapshot() const = 0;  // copies in host memory
  virtual NamedTensors shapes() const = 0;    // the dtypes and shapes, without data
};

// A state in host memory, for artifacts whose inputs and outputs are in host memory.
class HostState final : public DeviceState {
 public:
  explicit HostState(NamedTensors held) : tensors(std::move(held)) {}
  NamedTensors snapshot() const override { return tensors; }
  NamedTensors shapes() const override {
    NamedTensors found;
    for (const auto& [name, tensor] : tensors) {
      found[name] = {tensor.dtype, tensor.shape, {}};
    }
    return found;
  }

  NamedTensors tensors;
};

}  // namespace fuseconv::runtime
