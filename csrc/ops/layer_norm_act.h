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

  struct Args {
    In x;
    std::optional<In> weight, bias;
    double eps;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    check_norm(name, args.x, args.weight, args.bias);
    parse_activation(name, args.act);
    return {contiguous_like(args.x)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    norm(host, Norm{args.x, std::nullopt, args.weight, args.bias, args.eps, true, parse_activation(name, args.act), y,
                    std::nullopt});
  }
};

}  // namespace fuseconv
