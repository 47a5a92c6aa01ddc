// What the two torch libraries share: arguments off the boxed stack, results onto it, the GEMM. LibTorch stable ABI
// only, so that one build serves every torch from 2.10 on.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/host.h"
#include "core/layout.h"
#include "core/tensor_view.h"

namespace fuseconv::torch_binding {

using torch::stable::Tensor;

// What keeps an argument alive during the call, by the type that the kernel sees.
template <class T>
struct Owner {
  using type = T;
};
template <>
struct Owner<In> {
  using type = Tensor;
};
template <>
struct Owner<InI64> {
  using type = Tensor;
};
template <>
struct Owner<std::optional<In>> {
  using type = std::optional<Tensor>;
};
template <>
struct Owner<std::string_view> {
  using type = std::string;
};
template <>
struct Owner<std::span<const int64_t>> {
  using type = std::vector<int64_t>;
};

Dtype dtype_of(const Tensor& tensor);
int32_t shim_dtype(Dtype dtype);

In view(const Tensor& tensor);
Out writable(const Tensor& tensor);
inline std::optional<In> view(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional<In>(view(*tensor)) : std::nullopt;
}
inline std::string_view view(const std::string& text) { return text; }
inline std::span<const int64_t> view(const std::vector<int64_t>& numbers) { return numbers; }
template <class T>
  requires std::is_arithmetic_v<T>
T view(T value) {
  return value;
}

struct Device {
  int32_t type;
  int32_t index;
};

// Takes the device of the first tensor and checks that the others are on it.
class CommonDevice {
 public:
  explicit CommonDevice(const char* op) : op_(op) {}
  void add(const Tensor& tensor);
  void add(const std::optional<Tensor>& tensor) {
    if (tensor) {
      add(*tensor);
    }
  }
  template <class T>
  void add(const T&) {}
  Device get() const { return *device_; }

 private:
  const char* op_;
  std::optional<Device> device_;
};

Tensor allocate(const Spec& spec, Device device);

// Host::scratch: tensors of torch's allocator, kept as long as the call.
class Scratch {
 public:
  explicit Scratch(Device device) : device_(device) {}
  void* get(size_t bytes);

 private:
  Device device_;
  std::vector<Tensor> kept_;
};

// aten::addmm.out, aten::mm.out and aten::baddbmm.out of one device, below autograd and autocast.
struct GemmShims {
  AOTITorchError (*addmm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double);
  AOTITorchError (*mm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle);
  AOTITorchError (*baddbmm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double);
};

// Host::linear by these shims: what aten::linear does, into a result that exists. The weight keeps its strides.
void linear(const GemmShims& shims, Device device, In x, In weight, std::optional<In> bias, Out y);

// Host::batched_product by these shims.
void batched_product(const GemmShims& shims, Device device, In a, In b, double scale, Out y);

// Runs an op: stack of arguments in, stack of results out. `invoke(device, run)` makes the host and calls run(host).
template <class Op, class Kernel, class Invoke, size_t N, class... Args, size_t... I, size_t... O>
void call(StableIValue* stack, Kernel kernel, Invoke invoke, std::array<Spec, N> (*outputs)(Args...),
          std::index_sequence<I...>, std::index_sequence<O...>) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  const std::tuple<typename Owner<Args>::type...> owners{to<typename Owner<Args>::type>(stack[I])...};
  CommonDevice device(Op::name);
  (device.add(std::get<I>(owners)), ...);
  const std::array<Spec, N> specs = outputs(view(std::get<I>(owners))...);
  invoke(device.get(), [&](auto& host) {
    const std::array<Tensor, N> results{allocate(specs[O], device.get())...};
    kernel(host, view(std::get<I>(owners))..., writable(results[O])...);
    ((stack[O] = from(results[O])), ...);
  });
}

template <class Op, class Kernel, class Invoke, size_t N, class... Args>
void call(StableIValue* stack, Kernel kernel, Invoke invoke, std::array<Spec, N> (*outputs)(Args...)) {
  call<Op>(stack, kernel, invoke, outputs, std::index_sequence_for<Args...>{}, std::make_index_sequence<N>{});
}

}  // namespace fuseconv::torch_binding
