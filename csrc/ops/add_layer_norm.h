// s = x + residual; y = layer_norm(s) over the last dim. Returns y and s. If keep_sum is false, an empty tensor takes
// the place of s.
#pragma once

#include <array>
#include <optional>

#include "kernels/norm.h"

namespace fuseconv {

struct AddLayerNorm {
  static constexpr const char* name = "add_layer_norm";
  static constexpr const char* schema =
      "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, bool keep_sum=True)"
      " -> (Tensor, Tensor)";

  struct Args {
    In x, residual;
    std::optional<In> weight, bias;
    double eps;
    bool keep_sum;
  };

  static std::array<Spec, 2> outputs(const Args& args) {
    check_norm(name, args.x, args.weight, args.bias);
    return norm_and_sum(name, args.x, args.residual, args.keep_sum);
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y, Out sum) {
    norm(host, Norm{args.x, args.residual, args.weight, args.bias, args.eps, true, Activation::none, y,
                    args.keep_sum ? std::optional(sum) : std::nullopt});
  }
};

}  // namespace fuseconv
