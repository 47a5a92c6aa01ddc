// An op as the dispatcher calls it: its arguments on a stack, its results onto it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bind/torch.h"

namespace fuseconv::torch_binding {

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

inline In view(const Tensor& tensor) { return view(tensor.get()); }
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

inline void add(CommonDevice& device, const Tensor& tensor) { device.add(tensor.get()); }
inline void add(CommonDevice& device, const std::optional<Tensor>& tensor) {
  if (tensor) {
    add(device, *tensor);
  }
}
template <class T>
void add(CommonDevice&, const T&) {}

// Runs an op: stack of arguments in, stack of results out.
template <class Op, class Kernel, class Invoke, size_t N, class... Args>
void call_boxed(StableIValue* stack, Kernel kernel, Invoke invoke, std::array<Spec, N> (*outputs)(Args...)) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  [&]<size_t... I>(std::index_sequence<I...>) {
    const std::tuple<typename Owner<Args>::type...> owners{to<typename Owner<Args>::type>(stack[I])...};
    CommonDevice device(Op::name);
    (add(device, std::get<I>(owners)), ...);
    const std::array<Tensor, N> results = run(kernel, invoke, device.get(), outputs, view(std::get<I>(owners))...);
    for (size_t i = 0; i < N; ++i) {
      stack[i] = from(results[i]);
    }
  }(std::index_sequence_for<Args...>());
}

}  // namespace fuseconv::torch_binding
