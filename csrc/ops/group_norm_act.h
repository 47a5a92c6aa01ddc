// y = act(group_norm(x)), x [N, C, ...]. The result is channels last if x is, otherwise contiguous.
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

  struct Args {
    In x;
    int64_t groups;
    std::optional<In> weight, bias;
    double eps;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    check_group_norm(name, args.x, args.groups, args.weight, args.bias);
    parse_activation(name, args.act);
    const In x = args.x;
    return {is_channels_last(x) ? channels_last(x.dtype, x.rank, x.sizes) : contiguous_like(x)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    group_norm(host,
               GroupNorm{args.x, args.groups, args.weight, args.bias, args.eps, parse_activation(name, args.act), y});
  }
};

}  // namespace fuseconv
