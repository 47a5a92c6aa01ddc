// y[..., n] = act(sum_k x[..., k] weight[n, k] + bias[n]) + residual[..., n], or, if residual_first,
// y[..., n] = act(sum_k x[..., k] weight[n, k] + bias[n] + residual[..., n])
//
// On the CPU, the host's GEMM computes the product and writes it to y. One in-place pass over y then applies the
// activation and adds the residual. In f16 and bf16, this pass starts from the rounded product, computes in f32 and
// rounds once.
//
// On CUDA, gemm provides several backends. `backend` selects one. "auto" selects the fastest according to the known
// tactics. With FUSECONV_TIMING=on, a shape without measured tactics is timed on its first use outside a stream
// capture. Products of f32 tensors are computed in f32, or in TF32 if `tf32` is set.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "core/linear_backend.h"
#include "kernels/linear.h"

namespace fuseconv {

struct LinearAct {
  static constexpr const char* name = "linear_act";
  static constexpr const char* schema =
      "linear_act(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, str act=\"none\", "
      "str backend=\"auto\", bool tf32=False, bool residual_first=False) -> Tensor";

  struct Args {
    In x, weight;
    std::optional<In> bias, residual;
    std::string_view act, backend;
    bool tf32, residual_first;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"x", args.x}, {"weight", args.weight}});
    check_has_dims(name, {"x", args.x});
    const int64_t columns = args.x.sizes[args.x.rank - 1];
    check(args.weight.rank == 2 && args.weight.sizes[1] == columns, "fuseconv::", name,
          ": weight must have the shape [N, ", columns, "], the last dim of x, but has ", SizesText{args.weight});
    Spec y = contiguous_like(args.x);
    y.sizes[y.rank - 1] = args.weight.sizes[0];
    y = contiguous_like(y);
    if (args.bias) {
      common_dtype(name, {{"x", args.x}, {"bias", *args.bias}});
      check_vector(name, {"bias", *args.bias}, {"x weight^T", y});
    }
    if (args.residual) {
      common_dtype(name, {{"x", args.x}, {"residual", *args.residual}});
      check_same_sizes(name, {"x weight^T", y}, {"residual", *args.residual});
    }
    parse_activation(name, args.act);
    linear::parse_backend(name, args.backend);
    return {y};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    linear_layer(host,
                 LinearLayer{args.x, args.weight, args.bias, args.residual, parse_activation(name, args.act), false,
                             args.tf32, linear::parse_backend(name, args.backend), y, args.residual_first});
  }
};

}  // namespace fuseconv
