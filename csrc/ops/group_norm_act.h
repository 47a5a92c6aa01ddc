// y = act(group_norm(x)), x [N, C, ...]
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "kernels/group_norm.h"

namespace fuseconv {

struct GroupNormAct {
  static constexpr const char* name = "group_norm_act";
  static constexpr const char* schema =
      "group_norm_act(Tensor x, int groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-5, str act=\"none\")"
      " -> Tensor";

  static std::array<Spec, 1> outputs(In x, int64_t groups, std::optional<In> weight, std::optional<In> bias, double,
                                     std::string_view act) {
    check_group_norm(name, x, groups, weight, bias);
    parse_activation(name, act);
    return {contiguous_like(x)};
  }

  static GroupNorm arguments(In x, int64_t groups, std::optional<In> weight, std::optional<In> bias, double eps,
                             std::string_view act, Out y) {
    return {x, groups, weight, bias, eps, parse_activation(name, act), y};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, int64_t groups, std::optional<In> weight, std::optional<In> bias, double eps,
                  std::string_view act, Out y);
  static void cuda(CudaHost& host, In x, int64_t groups, std::optional<In> weight, std::optional<In> bias, double eps,
                   std::string_view act, Out y);
};

}  // namespace fuseconv
