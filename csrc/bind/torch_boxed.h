// Lets torch's dispatcher call an op, with the arguments and results on a stack.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bind/torch.h"

namespace fuseconv::torch_binding {

// An argument that the call takes from the stack and owns. See core/op.h.
class BoxedArgument {
 public:
  void take(StableIValue value, CommonDevice& device) {
    value_ = value;
    device_ = &device;
  }

  operator In() { return of(owned<Tensor>(tensor_)); }
  operator InI64() { return of(owned<Tensor>(tensor_)); }
  operator std::optional<In>() {
    auto given = torch::stable::detail::to<std::optional<Tensor>>(value_);
    if (!given) {
      return std::nullopt;
    }
    return of(tensor_.emplace(*std::move(given)));
  }
  operator int64_t() { return torch::stable::detail::to<int64_t>(value_); }
  operator double() { return torch::stable::detail::to<double>(value_); }
  operator bool() { return torch::stable::detail::to<bool>(value_); }
  operator std::string_view() { return owned<std::string>(text_); }
  operator std::span<const int64_t>() { return owned<std::vector<int64_t>>(numbers_); }

 private:
  template <class T>
  const T& owned(std::optional<T>& place) {
    return place.emplace(torch::stable::detail::to<T>(value_));
  }
  In of(const Tensor& tensor) {
    device_->add(tensor.get());
    return view(tensor.get());
  }

  StableIValue value_;
  CommonDevice* device_;
  std::optional<Tensor> tensor_;
  std::optional<std::string> text_;
  std::optional<std::vector<int64_t>> numbers_;
};

// Runs an op: takes the op's arguments from the stack and puts its results there.
template <class Op, class Kernel, class Invoke>
void call_boxed(StableIValue* stack, Kernel kernel, Invoke invoke) {
  CommonDevice device(Op::name);
  std::array<BoxedArgument, kArguments<Op>> owners;
  const auto args = make_args<Op>([&](size_t i) -> BoxedArgument& {
    owners[i].take(stack[i], device);
    return owners[i];
  });
  const auto results = run<Op>(kernel, invoke, device.get(), args);
  for (size_t i = 0; i < results.size(); ++i) {
    stack[i] = torch::stable::detail::from(results[i]);
  }
}

}  // namespace fuseconv::torch_binding
