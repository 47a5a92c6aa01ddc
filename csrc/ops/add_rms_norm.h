// s = x + residual;  y = s / sqrt(mean(s^2) + eps) * weight over the last dim;  gives y, and s if keep_sum, else an
// empty tensor
#pragma once

#include <array>
#include <optional>

#include "kernels/norm.h"

namespace fuseconv {

struct AddRmsNorm {
  static constexpr const char* name = "add_rms_norm";
  static constexpr const char* schema =
      "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, bool keep_sum=True) -> (Tensor, Tensor)";

  static std::array<Spec, 2> outputs(In x, In residual, std::optional<In> weight, double, bool keep_sum) {
    check_norm(name, x, weight, std::nullopt);
    return norm_and_sum(name, x, residual, keep_sum);
  }

  static Norm arguments(In x, In residual, std::optional<In> weight, double eps, bool keep_sum, Out y, Out sum) {
    return {x,
            residual,
            weight,
            std::nullopt,
            eps,
            false,
            Activation::none,
            y,
            keep_sum ? std::optional(sum) : std::nullopt};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, In residual, std::optional<In> weight, double eps, bool keep_sum, Out y,
                  Out sum);
  static void cuda(CudaHost& host, In x, In residual, std::optional<In> weight, double eps, bool keep_sum, Out y,
                   Out sum);
};

}  // namespace fuseconv
