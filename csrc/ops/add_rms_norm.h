// s = x + residual; y = s / sqrt(mean(s^2) + eps) * weight over the last dim. Returns y and s. If keep_sum is false, an
// empty tensor takes the place of s.
#pragma once

#include <array>
#include <optional>

#include "kernels/norm.h"

namespace fuseconv {

struct AddRmsNorm {
  static constexpr const char* name = "add_rms_norm";
  static constexpr const char* schema =
      "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, bool keep_sum=True) -> (Tensor, Tensor)";

  struct Args {
    In x, residual;
    std::optional<In> weight;
    double eps;
    bool keep_sum;
  };

  static std::array<Spec, 2> outputs(const Args& args) {
    check_norm(name, args.x, args.weight, std::nullopt);
    return norm_and_sum(name, args.x, args.residual, args.keep_sum);
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y, Out sum) {
    norm(host, Norm{args.x, args.residual, args.weight, std::nullopt, args.eps, false, Activation::none, y,
                    args.keep_sum ? std::optional(sum) : std::nullopt});
  }
};

}  // namespace fuseconv
