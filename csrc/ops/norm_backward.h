// Computes the gradients of layer norm (`centred` is true) and of RMS norm (`centred` is false). The gradient with
// respect to x is always computed. If `affine` is true, the gradient with respect to weight is also computed and, for
// layer norm, the gradient with respect to bias. Returns an empty tensor in place of each gradient that is not
// computed.
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

  struct Args {
    In grad, x;
    std::optional<In> weight, grad_sum;
    double eps;
    bool centred, affine;
  };

  static std::array<Spec, 3> outputs(const Args& args) {
    check_norm(name, args.x, args.weight, std::nullopt);
    common_dtype(name, {{"x", args.x}, {"grad", args.grad}});
    check_same_sizes(name, {"x", args.x}, {"grad", args.grad});
    if (args.grad_sum) {
      common_dtype(name, {{"x", args.x}, {"grad_sum", *args.grad_sum}});
      check_same_sizes(name, {"x", args.x}, {"grad_sum", *args.grad_sum});
    }
    const int64_t none = 0, columns = args.x.sizes[args.x.rank - 1];
    return {contiguous_like(args.x), contiguous(args.x.dtype, 1, args.affine ? &columns : &none),
            contiguous(args.x.dtype, 1, args.affine && args.centred ? &columns : &none)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out grad_x, Out grad_weight, Out grad_bias) {
    norm_backward(host, NormGradients{args.grad, args.x, args.weight, args.grad_sum, args.eps, args.centred, grad_x,
                                      args.affine ? std::optional(grad_weight) : std::nullopt,
                                      args.affine && args.centred ? std::optional(grad_bias) : std::nullopt});
  }
};

}  // namespace fuseconv
