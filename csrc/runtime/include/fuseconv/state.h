// The state that a model carries from call to call, such as a key-value cache, in the memory of the model's device.
// docs/adr/0037-state-in-place.md gives the reasons.
//
//   fuseconv::runtime::State state = prefill.zero_state({{"batch", 2}});
//   fuseconv::runtime::NamedTensors outputs = prefill.advance(state, {{"input_ids", ids}, {"attention_mask", mask}});
//   outputs = decode.advance(state, {{"input_ids", tokens}, {"attention_mask", ones}});
#pragma once

#include <memory>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

class DeviceState;
class Model;

// Belongs to one thread at a time. If a call of Model::advance throws, the state is undefined.
class State {
 public:
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;
  ~State();

  // Returns copies of the tensors in host memory, by input name.
  NamedTensors snapshot() const;

 private:
  friend class Model;
  explicit State(std::unique_ptr<DeviceState> held);
  std::unique_ptr<DeviceState> held_;
};

}  // namespace fuseconv::runtime
