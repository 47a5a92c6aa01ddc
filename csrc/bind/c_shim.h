// Lets an AOTInductor package call an op through a pointer to a C function, without the dispatcher and without boxing.
#pragma once

#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string_view>

#include "bind/registry.h"
#include "bind/torch.h"

namespace fuseconv::torch_binding {

// The C representation of an `int[]` argument.
struct Ints {
  const int64_t* data;
  int64_t size;
};

// Reads an argument of a C call, which is passed as a pointer. A `Tensor` is a handle; a `Tensor?` is a pointer to a
// handle, or null; a `str` is a const char*; a `bool` is an int32_t. core/op.h describes how arguments are converted.
class CArgument {
 public:
  CArgument(const void* argument, CommonDevice& device) : argument_(argument), device_(device) {}

  operator In() { return of(as<AtenTensorHandle>()); }
  operator InI64() { return of(as<AtenTensorHandle>()); }
  operator std::optional<In>() {
    const AtenTensorHandle* tensor = as<const AtenTensorHandle*>();
    return tensor == nullptr ? std::nullopt : std::optional<In>(of(*tensor));
  }
  operator int64_t() { return as<int64_t>(); }
  operator double() { return as<double>(); }
  operator bool() { return as<int32_t>() != 0; }
  operator std::string_view() { return as<const char*>(); }
  operator std::span<const int64_t>() {
    const Ints& ints = as<Ints>();
    return {ints.data, static_cast<size_t>(ints.size)};
  }

 private:
  template <class T>
  const T& as() const {
    return *static_cast<const T*>(argument_);
  }
  In of(AtenTensorHandle tensor) {
    device_.add(tensor);
    return view(tensor);
  }

  const void* argument_;
  CommonDevice& device_;
};

// Implements the CShim of an op: runs the op and stores its results. The caller of a shim learns only that the shim
// failed, so the error message is printed here, as torch's own shims do.
template <class Op, class Kernel, class Invoke>
AOTITorchError call_from_c(const void* const* arguments, AtenTensorHandle* const* results, Kernel kernel,
                           Invoke invoke) {
  try {
    CommonDevice device(Op::name);
    const auto args = make_args<Op>([&](size_t i) { return CArgument(arguments[i], device); });
    const auto made = run<Op>(kernel, invoke, device.get(), args);
    for (size_t i = 0; i < made.size(); ++i) {
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(made[i].get(), results[i]));
    }
    return AOTI_TORCH_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return AOTI_TORCH_FAILURE;
  }
}

}  // namespace fuseconv::torch_binding
