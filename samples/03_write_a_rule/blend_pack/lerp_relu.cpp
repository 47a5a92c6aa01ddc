// y[i] = relu(old[i] + weight[i] * (fresh[i] - old[i])): the op of this pack, on PyTorch's stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
void run(const Tensor& old, const Tensor& fresh, const Tensor& weight, Tensor& result) {
  const T* a = static_cast<const T*>(old.const_data_ptr());
  const T* b = static_cast<const T*>(fresh.const_data_ptr());
  const T* w = static_cast<const T*>(weight.const_data_ptr());
  T* y = static_cast<T*>(result.mutable_data_ptr());
  for (int64_t i = 0; i < result.numel(); ++i) {
    const T value = a[i] + w[i] * (b[i] - a[i]);
    y[i] = value < 0 ? 0 : value;  // a NaN is not below 0, and stays
  }
}

Tensor lerp_relu(const Tensor& old, const Tensor& fresh, const Tensor& weight) {
  for (const Tensor* operand : {&fresh, &weight}) {
    STD_TORCH_CHECK(operand->scalar_type() == old.scalar_type() && operand->sizes().equals(old.sizes()),
                    "lerp_relu: fresh and weight must have the dtype and the shape of old");
  }
  // Whatever layout a caller has, the result is dense and row-major, as ops.py says.
  const Tensor a = torch::stable::contiguous(old);
  const Tensor b = torch::stable::contiguous(fresh);
  const Tensor w = torch::stable::contiguous(weight);
  Tensor result = torch::stable::empty_like(a);
  switch (old.scalar_type()) {
    case ScalarType::Float:
      run<float>(a, b, w, result);
      break;
    case ScalarType::Double:
      run<double>(a, b, w, result);
      break;
    default:
      STD_TORCH_CHECK(false, "lerp_relu: the operands must be float32 or float64");
  }
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY(blend, library) { library.def("lerp_relu(Tensor old, Tensor fresh, Tensor weight) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(blend, CPU, library) { library.impl("lerp_relu", TORCH_BOX(&lerp_relu)); }
