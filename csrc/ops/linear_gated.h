// y[..., n] = act(sum_k x[..., k] weight[n, k] + bias[n]) (sum_k x[..., k] weight[H + n, k] + bias[H + n]), n < H
//
// On the CPU, the host's GEMM writes the product, [..., 2H], to a scratch buffer, and one more pass computes y from the
// two halves of the product. In f16 and bf16, this pass starts from the rounded product, computes in f32 and rounds
// once. On CUDA, gemm computes the layer as for linear_act; on Hopper in f16 and bf16, it uses one kernel.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "kernels/linear.h"
#include "ops/gated_act.h"

namespace fuseconv {

struct LinearGated {
  static constexpr const char* name = "linear_gated";
  static constexpr const char* schema =
      "linear_gated(Tensor x, Tensor weight, Tensor? bias=None, str act=\"silu\") -> Tensor";

  struct Args {
    In x, weight;
    std::optional<In> bias;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"x", args.x}, {"weight", args.weight}});
    check_has_dims(name, {"x", args.x});
    const int64_t columns = args.x.sizes[args.x.rank - 1];
    check(args.weight.rank == 2 && args.weight.sizes[1] == columns && args.weight.sizes[0] % 2 == 0, "fuseconv::", name,
          ": weight must have the shape [2H, ", columns, "], gates before ups, ", columns,
          " the last dim of x, but has ", SizesText{args.weight});
    if (args.bias) {
      common_dtype(name, {{"x", args.x}, {"bias", *args.bias}});
      check_vector(name, {"bias", *args.bias}, {"x weight^T", product_of(args.x, args.weight)});
    }
    parse_activation(name, args.act);
    return {with_last_dim(args.x, args.weight.sizes[0] / 2)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    linear_layer(host, LinearLayer{args.x, args.weight, args.bias, std::nullopt, parse_activation(name, args.act), true,
                                   false, std::nullopt, y});
  }

  // Describes x weight^T: the gates, then the ups.
  static Spec product_of(In x, In weight) { return with_last_dim(x, weight.sizes[0]); }

 private:
  static Spec with_last_dim(In x, int64_t size) {
    Spec spec = contiguous_like(x);
    spec.sizes[x.rank - 1] = size;
    return contiguous_like(spec);
  }
};

}  // namespace fuseconv
