// An op as a package of AOTInductor calls it, by a pointer to a C function: without the dispatcher, and with nothing
// put into boxes and taken out of them.
#pragma once

#include <cstdio>
#include <exception>
#include <span>
#include <string_view>

#include "bind/registry.h"
#include "bind/torch.h"

namespace fuseconv::torch_binding {

// `int[]`.
struct Ints {
  const int64_t* data;
  int64_t size;
};

// The tensor that is an argument, or null: in C a `Tensor` is a handle, and a `Tensor?` a pointer to one, null for
// none.
template <class T>
AtenTensorHandle tensor_of(const void* argument) {
  if constexpr (std::is_base_of_v<In, T>) {
    return *static_cast<const AtenTensorHandle*>(argument);
  } else if constexpr (std::is_same_v<T, std::optional<In>>) {
    const AtenTensorHandle* tensor = *static_cast<const AtenTensorHandle* const*>(argument);
    return tensor == nullptr ? nullptr : *tensor;
  } else {
    return nullptr;
  }
}

// The argument that a pointer leads to, as the kernel sees it. In C `str` is a const char*, `bool` an int32_t.
template <class T>
T passed(const void* argument) {
  if constexpr (std::is_base_of_v<In, T>) {
    return view(tensor_of<T>(argument));
  } else if constexpr (std::is_same_v<T, std::optional<In>>) {
    const AtenTensorHandle tensor = tensor_of<T>(argument);
    return tensor == nullptr ? std::nullopt : T(view(tensor));
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return *static_cast<const char* const*>(argument);
  } else if constexpr (std::is_same_v<T, std::span<const int64_t>>) {
    const Ints& ints = *static_cast<const Ints*>(argument);
    return {ints.data, static_cast<size_t>(ints.size)};
  } else if constexpr (std::is_same_v<T, bool>) {
    return *static_cast<const int32_t*>(argument) != 0;
  } else {
    return *static_cast<const T*>(argument);
  }
}

// Runs an op as CShim says. A shim tells its caller no more than that it failed; torch's own print why, and so does
// this.
template <class Op, class Kernel, class Invoke, size_t N, class... Args>
AOTITorchError call_from_c(const void* const* arguments, AtenTensorHandle* const* results, Kernel kernel, Invoke invoke,
                           std::array<Spec, N> (*outputs)(Args...)) {
  try {
    const std::array<Tensor, N> made = [&]<size_t... I>(std::index_sequence<I...>) {
      CommonDevice device(Op::name);
      for (const AtenTensorHandle tensor : {tensor_of<Args>(arguments[I])...}) {
        if (tensor != nullptr) {
          device.add(tensor);
        }
      }
      return run(kernel, invoke, device.get(), outputs, passed<Args>(arguments[I])...);
    }(std::index_sequence_for<Args...>());
    for (size_t i = 0; i < N; ++i) {
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(made[i].get(), results[i]));
    }
    return AOTI_TORCH_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return AOTI_TORCH_FAILURE;
  }
}

}  // namespace fuseconv::torch_binding
