// y = act(layer_norm(x)) over the last dim
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "kernels/norm.h"

namespace fuseconv {

struct LayerNormAct {
  static constexpr const char* name = "layer_norm_act";
  static constexpr const char* schema =
      "layer_norm_act(Tensor x, Tensor? weight, Tensor? bias, float eps, str act) -> Tensor";

  static std::array<Spec, 1> outputs(In x, std::optional<In> weight, std::optional<In> bias, double,
                                     std::string_view act) {
    check_norm(name, x, weight, bias);
    parse_activation(name, act);
    return {contiguous_like(x)};
  }

  static Norm arguments(In x, std::optional<In> weight, std::optional<In> bias, double eps, std::string_view act,
                        Out y) {
    return {x, std::nullopt, weight, bias, eps, true, parse_activation(name, act), y, std::nullopt};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, std::optional<In> weight, std::optional<In> bias, double eps,
                  std::string_view act, Out y);
  static void cuda(CudaHost& host, In x, std::optional<In> weight, std::optional<In> bias, double eps,
                   std::string_view act, Out y);
};

}  // namespace fuseconv
