// y[..., n] = act(sum_k x[..., k] weight[n, k] + bias[n]) (sum_k x[..., k] weight[H + n, k] + bias[H + n]), n < H
//
// On the CPU the host's GEMM writes the product, [..., 2H], to scratch, and one more pass makes y of its halves. In f16
// and bf16 that pass starts from the rounded product, computes in f32 and rounds once. On CUDA gemm does it, as
// for linear_act: in one kernel on Hopper in f16 and bf16.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "ops/gated_act.h"

namespace fuseconv {

struct LinearGated {
  static constexpr const char* name = "linear_gated";
  static constexpr const char* schema =
      "linear_gated(Tensor x, Tensor weight, Tensor? bias=None, str act=\"silu\") -> Tensor";

  static std::array<Spec, 1> outputs(In x, In weight, std::optional<In> bias, std::string_view act) {
    common_dtype(name, {{"x", x}, {"weight", weight}});
    check_has_dims(name, {"x", x});
    const int64_t columns = x.sizes[x.rank - 1];
    check(weight.rank == 2 && weight.sizes[1] == columns && weight.sizes[0] % 2 == 0, "fuseconv::", name,
          ": weight must have the shape [2H, ", columns, "], gates before ups, ", columns,
          " the last dim of x, but has ", to_string(weight));
    if (bias) {
      common_dtype(name, {{"x", x}, {"bias", *bias}});
      check_vector(name, {"bias", *bias}, {"x weight^T", product_of(x, weight)});
    }
    parse_activation(name, act);
    return {with_last_dim(x, weight.sizes[0] / 2)};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y);
  static void cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y);

  // x weight^T: gates, then ups.
  static Spec product_of(In x, In weight) { return with_last_dim(x, weight.sizes[0]); }

 private:
  static Spec with_last_dim(In x, int64_t size) {
    Spec spec = contiguous_like(x);
    spec.sizes[x.rank - 1] = size;
    return contiguous_like(spec);
  }
};

}  // namespace fuseconv
