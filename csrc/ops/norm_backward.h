// The gradients of layer norm (centred) and RMS norm: of x, and with `affine` of weight, and of bias if centred
#pragma once

#include <array>
#include <optional>

#include "kernels/norm.h"
#include "kernels/norm_backward.h"

namespace fuseconv {

struct NormBackward {
  static constexpr const char* name = "norm_backward";
  static constexpr const char* schema =
      "norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? grad_sum, float eps, bool centred, bool affine)"
      " -> (Tensor, Tensor, Tensor)";

  static std::array<Spec, 3> outputs(In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double,
                                     bool centred, bool affine) {
    check_norm(name, x, weight, std::nullopt);
    common_dtype(name, {{"x", x}, {"grad", grad}});
    check_same_sizes(name, {"x", x}, {"grad", grad});
    if (grad_sum) {
      common_dtype(name, {{"x", x}, {"grad_sum", *grad_sum}});
      check_same_sizes(name, {"x", x}, {"grad_sum", *grad_sum});
    }
    const int64_t none = 0, columns = x.sizes[x.rank - 1];
    return {contiguous_like(x), contiguous(x.dtype, 1, affine ? &columns : &none),
            contiguous(x.dtype, 1, affine && centred ? &columns : &none)};
  }

  static NormGradients arguments(In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double eps,
                                 bool centred, bool affine, Out grad_x, Out grad_weight, Out grad_bias) {
    return {grad,
            x,
            weight,
            grad_sum,
            eps,
            centred,
            grad_x,
            affine ? std::optional(grad_weight) : std::nullopt,
            affine && centred ? std::optional(grad_bias) : std::nullopt};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double eps,
                  bool centred, bool affine, Out grad_x, Out grad_weight, Out grad_bias);
  static void cuda(CudaHost& host, In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double eps,
                   bool centred, bool affine, Out grad_x, Out grad_weight, Out grad_bias);
};

}  // namespace fuseconv
