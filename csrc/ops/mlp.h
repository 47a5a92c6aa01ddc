// y[..., n] = h_L, h_0 = x[..., K0], h_i[..., n] = act_i(sum_k h_(i-1)[..., k] weight_i[n, k] + bias_i[n]), L = 2 or 3
//
// act_i is `last_act` for the last layer and `act` for the others. All widths are at most 256, so that one SM or CPU
// core computes all layers for a block of rows. On CUDA in f16 and bf16, one kernel computes all layers
// (kernels/mlp.h). On the CPU, rows are processed in blocks whose intermediates stay in L2. Between the layers, values
// are rounded to the dtype of x.
//
// On CUDA, f32 and f64 are computed layer by layer, each layer by the fastest backend of linear_act, because their
// products are compute-bound and not memory-bound. In f32, one kernel of FFMA tiles was slower on an H200 at every
// batch and width tried (docs/performance/mlp.md).
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/mlp.h"

namespace fuseconv {

struct Mlp {
  static constexpr const char* name = "mlp";
  static constexpr const char* schema =
      "mlp(Tensor x, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, Tensor? weight3=None, "
      "Tensor? bias3=None, str act=\"relu\", str last_act=\"none\") -> Tensor";
  struct Args {
    In x, weight1;
    std::optional<In> bias1;
    In weight2;
    std::optional<In> bias2, weight3, bias3;
    std::string_view act, last_act;
  };

  static MlpLayers layers(const Args& args) {
    const Activation hidden = parse_activation(name, args.act), last = parse_activation(name, args.last_act);
    if (!args.weight3) {
      return {2, {{args.weight1, args.bias1, hidden}, {args.weight2, args.bias2, last}, {}}};
    }
    return {
        3, {{args.weight1, args.bias1, hidden}, {args.weight2, args.bias2, hidden}, {*args.weight3, args.bias3, last}}};
  }

  static std::array<Spec, 1> outputs(const Args& args) {
    static constexpr const char* weight_names[] = {"weight1", "weight2", "weight3"};
    static constexpr const char* bias_names[] = {"bias1", "bias2", "bias3"};
    check(args.weight3 || !args.bias3, "fuseconv::", name, ": bias3 is given without weight3");
    check_has_dims(name, {"x", args.x});
    const MlpLayers all = layers(args);
    Spec y = contiguous_like(args.x);
    int64_t& width = y.sizes[y.rank - 1];
    check_width("the last dim of x", width);
    for (int i = 0; i < all.count; ++i) {
      const In& weight = all.at[i].weight;
      common_dtype(name, {{"x", args.x}, {weight_names[i], weight}});
      check(weight.rank == 2 && weight.sizes[1] == width, "fuseconv::", name, ": ", weight_names[i],
            " must have the shape [N, ", width, "], ",
            i == 0 ? "the last dim of x" : "the rows of the weight before it", ", but has ", SizesText{weight});
      width = weight.sizes[0];
      check_width(weight_names[i], width);
      if (const auto& bias = all.at[i].bias) {
        common_dtype(name, {{"x", args.x}, {bias_names[i], *bias}});
        check(bias->rank == 1 && bias->sizes[0] == width, "fuseconv::", name, ": ", bias_names[i],
              " must have the shape [", width, "], the rows of ", weight_names[i], ", but has ", SizesText{*bias});
      }
    }
    return {contiguous_like(y)};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    mlp(host, layers(args), args.x, y);
  }

 private:
  static void check_width(const char* what, int64_t width) {
    check(width <= kMaxMlpWidth, "fuseconv::", name, ": ", what, " makes a layer ", width, " wide; at most ",
          kMaxMlpWidth, " fit in one kernel: use linear_act for each layer");
  }
};

}  // namespace fuseconv
