// s = x + residual;  y = layer_norm(s) over the last dim;  gives y, and s if keep_sum, else an empty tensor
#pragma once

#include <array>
#include <optional>

#include "kernels/layer_norm.h"

namespace fuseconv {

struct AddLayerNorm {
  static constexpr const char* name = "add_layer_norm";
  static constexpr const char* schema =
      "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, bool keep_sum=True)"
      " -> (Tensor, Tensor)";

  static std::array<Spec, 2> outputs(In x, In residual, std::optional<In> weight, std::optional<In> bias, double,
                                     bool keep_sum) {
    check_layer_norm(name, x, weight, bias);
    common_dtype(name, {{"x", x}, {"residual", residual}});
    check_same_sizes(name, {"x", x}, {"residual", residual});
    const int64_t none = 0;
    return {contiguous_like(x),
            keep_sum ? broadcast(name, {"x", x}, {"residual", residual}) : contiguous(x.dtype, 1, &none)};
  }

  static LayerNorm norm(In x, In residual, std::optional<In> weight, std::optional<In> bias, double eps, bool keep_sum,
                        Out y, Out sum) {
    return {x, residual, weight, bias, eps, Activation::none, y, keep_sum ? std::optional(sum) : std::nullopt};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, In residual, std::optional<In> weight, std::optional<In> bias, double eps,
                  bool keep_sum, Out y, Out sum);
  static void cuda(CudaHost& host, In x, In residual, std::optional<In> weight, std::optional<In> bias, double eps,
                   bool keep_sum, Out y, Out sum);
};

}  // namespace fuseconv
