// y[..., n] = act(sum_k x[..., k] weight[n, k] + bias[n]) + residual[..., n]
//
// On the CPU the product is the host's GEMM, written into y; activation and residual are one more pass over y, in
// place. In f16 and bf16 that pass starts from the rounded product, computes in f32 and rounds once.
//
// On CUDA gemm has several backends; `backend` forces one, and "auto" takes the fastest for the shape: timed
// once, on first use outside a stream capture. f32 is multiplied in f32, or in TF32 where `tf32` asks for it.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "core/linear_backend.h"

namespace fuseconv {

struct LinearAct {
  static constexpr const char* name = "linear_act";
  static constexpr const char* schema =
      "linear_act(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, str act=\"none\", "
      "str backend=\"auto\", bool tf32=False) -> Tensor";

  static std::array<Spec, 1> outputs(In x, In weight, std::optional<In> bias, std::optional<In> residual,
                                     std::string_view act, std::string_view backend, bool) {
    common_dtype(name, {{"x", x}, {"weight", weight}});
    check_has_dims(name, {"x", x});
    const int64_t columns = x.sizes[x.rank - 1];
    check(weight.rank == 2 && weight.sizes[1] == columns, "fuseconv::", name, ": weight must have the shape [N, ",
          columns, "], the last dim of x, but has ", to_string(weight));
    Spec y = contiguous_like(x);
    y.sizes[y.rank - 1] = weight.sizes[0];
    y = contiguous_like(y);
    if (bias) {
      common_dtype(name, {{"x", x}, {"bias", *bias}});
      check_vector(name, {"bias", *bias}, {"x weight^T", y});
    }
    if (residual) {
      common_dtype(name, {{"x", x}, {"residual", *residual}});
      check_same_sizes(name, {"x weight^T", y}, {"residual", *residual});
    }
    parse_activation(name, act);
    linear::parse_backend(name, backend);
    return {y};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                  std::string_view act, std::string_view backend, bool tf32, Out y);
  static void cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                   std::string_view act, std::string_view backend, bool tf32, Out y);

  template <class Act>
  struct Epilogue {
    template <class A>
    FUSECONV_INLINE A operator()(A product) const {
      return Act{}(product);
    }
    template <class A>
    FUSECONV_INLINE A operator()(A product, A residual) const {
      return Act{}(product) + residual;
    }
  };
};

}  // namespace fuseconv
