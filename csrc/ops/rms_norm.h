// y = act(x / sqrt(mean(x^2) + eps) * weight) over the last dim
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "kernels/norm.h"

namespace fuseconv {

struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  static constexpr const char* schema = "rms_norm(Tensor x, Tensor? weight, float eps, str act=\"none\") -> Tensor";

  static std::array<Spec, 1> outputs(In x, std::optional<In> weight, double, std::string_view act) {
    check_norm(name, x, weight, std::nullopt);
    parse_activation(name, act);
    return {contiguous_like(x)};
  }

  static Norm arguments(In x, std::optional<In> weight, double eps, std::string_view act, Out y) {
    return {x, std::nullopt, weight, std::nullopt, eps, false, parse_activation(name, act), y, std::nullopt};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, std::optional<In> weight, double eps, std::string_view act, Out y);
  static void cuda(CudaHost& host, In x, std::optional<In> weight, double eps, std::string_view act, Out y);
};

}  // namespace fuseconv
