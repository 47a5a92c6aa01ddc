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

  struct Args {
    In x;
    std::optional<In> weight;
    double eps;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    check_norm(name, args.x, args.weight, std::nullopt);
    parse_activation(name, args.act);
    return {contiguous_like(args.x)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    norm(host, Norm{args.x, std::nullopt, args.weight, std::nullopt, args.eps, false, parse_activation(name, args.act),
                    y, std::nullopt});
  }
};

}  // namespace fuseconv
