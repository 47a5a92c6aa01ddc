#include "fuseconv/state.h"

#include "runner.h"

namespace fuseconv::runtime {

State::State(std::unique_ptr<DeviceState> held) : held_(std::move(held)) {}
State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;
State::~State() = default;

NamedTensors State::snapshot() const { return held_->snapshot(); }

std::unique_ptr<DeviceState> Runner::hold(NamedTensors tensors) const {
  return std::make_unique<HostState>(std::move(tensors));
}

bool Runner::holds(const DeviceState& state) const { return dynamic_cast<const HostState*>(&state) != nullptr; }

std::vector<Tensor> Runner::advance(const Contract& contract, DeviceState& state, std::vector<const Tensor*> inputs) {
  NamedTensors& tensors = dynamic_cast<HostState&>(state).tensors;
  for (const StatePlace& place : contract.state_places()) {
    inputs[place.input] = &tensors.at(place.name);
  }
  std::vector<Tensor> outputs = run(inputs);
  for (const StatePlace& place : contract.state_places()) {
    tensors[place.name] = std::exchange(outputs[place.output], {});
  }
  return outputs;
}

}  // namespace fuseconv::runtime
