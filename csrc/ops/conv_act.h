// y = act(convolution(x, weight) + bias + residual), or act(convolution(x, weight) + bias) + residual
//
// `padding` contains either one number per spatial dim, used on both sides of the dim, or two numbers per spatial dim:
// first the padding before the elements of each dim, then the padding after the elements of each dim.
//
// On CUDA, products of f32 tensors may be computed in TF32 if `tf32` is set. Otherwise the kernels of this library
// compute them in f32; the host, which computes a convolution for which there is none, follows its own setting.
//
// The result is channels last if x or weight is channels last, as in aten::convolution. Otherwise the result is
// contiguous.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/convolution.h"

namespace fuseconv {

struct ConvAct {
  static constexpr const char* name = "conv_act";
  static constexpr const char* schema =
      "conv_act(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int[] output_padding, int groups, str act=\"none\", bool residual_first=True, bool tf32=True) "
      "-> Tensor";
  static constexpr bool in_onnx_runtime = false;  // an ONNX model uses Conv instead

  struct Args {
    In x, weight;
    std::optional<In> bias, residual;
    std::span<const int64_t> stride, padding, dilation;
    bool transposed;
    std::span<const int64_t> output_padding;
    int64_t groups;
    std::string_view act;
    bool residual_first, tf32;
  };

  static void check_numbers(const char* what, std::span<const int64_t> numbers, size_t count, int64_t least) {
    check(numbers.size() == count, "fuseconv::", name, ": ", what, " must have ", count, " numbers, but has ",
          numbers.size());
    for (const int64_t number : numbers) {
      check(number >= least, "fuseconv::", name, ": ", what, " must be at least ", least, ", but is ", number);
    }
  }

  static std::array<Spec, 1> outputs(const Args& args) {
    const auto& [x, weight, bias, residual, stride, padding, dilation, transposed, output_padding, groups, act, first,
                 tf32] = args;
    common_dtype(name, {{"x", x}, {"weight", weight}});
    check(x.rank >= 3 && x.rank <= 5, "fuseconv::", name,
          ": x must have the shape [N, C, ...] with 1 to 3 spatial dims, "
          "but has ",
          SizesText{x});
    check(weight.rank == x.rank, "fuseconv::", name, ": weight must have as many dims as x, ", x.rank, ", but has ",
          SizesText{weight});
    check(element_count(weight) > 0, "fuseconv::", name, ": weight must not be empty, but has ", SizesText{weight});
    check(groups > 0 && weight.sizes[0] % groups == 0, "fuseconv::", name, ": groups must divide the first dim of ",
          "weight, ", weight.sizes[0], ", but is ", groups);
    const int64_t channels = transposed ? weight.sizes[0] : weight.sizes[1] * groups;
    check(x.sizes[1] == channels, "fuseconv::", name, ": x must have ", channels, " channels, but has the shape ",
          SizesText{x});
    const size_t spatial = static_cast<size_t>(x.rank) - 2;
    check_numbers("stride", stride, spatial, 1);
    check_numbers("padding", padding, padding.size() == spatial * 2 && !transposed ? spatial * 2 : spatial, 0);
    check_numbers("dilation", dilation, spatial, 1);
    check_numbers("output_padding", output_padding, spatial, 0);
    const std::span before = padding.first(spatial), after = padding.last(spatial);
    int64_t sizes[kMaxRank] = {x.sizes[0], transposed ? weight.sizes[1] * groups : weight.sizes[0]};
    for (size_t i = 0; i < spatial; ++i) {
      const int64_t extent = dilation[i] * (weight.sizes[i + 2] - 1) + 1;
      const int64_t size = x.sizes[i + 2];
      sizes[i + 2] = transposed ? (size - 1) * stride[i] - 2 * before[i] + extent + output_padding[i]
                                : (size + before[i] + after[i] - extent + stride[i]) / stride[i];
      check(size > 0 || x.sizes[0] == 0, "fuseconv::", name, ": spatial dim ", i, " of x must not be empty, but x has ",
            SizesText{x});
      check(!transposed || output_padding[i] < std::max(stride[i], dilation[i]), "fuseconv::", name,
            ": output_padding must be less than the stride or the dilation, but is ", output_padding[i]);
      check(sizes[i + 2] >= (transposed ? 0 : 1), "fuseconv::", name, ": spatial dim ", i,
            " of x is too small for the kernel: x has ", SizesText{x}, " and weight ", SizesText{weight});
    }
    const bool last = is_channels_last(x) || is_channels_last(weight);
    const Spec y = last ? channels_last(x.dtype, x.rank, sizes) : contiguous(x.dtype, x.rank, sizes);
    if (bias) {
      common_dtype(name, {{"x", x}, {"bias", *bias}});
      check(bias->rank == 1 && bias->sizes[0] == sizes[1], "fuseconv::", name, ": bias must have the shape [", sizes[1],
            "], but has ", SizesText{*bias});
    }
    if (residual) {
      common_dtype(name, {{"x", x}, {"residual", *residual}});
      check_same_sizes(name, {"the convolution", y}, {"residual", *residual});
    }
    parse_activation(name, act);
    return {y};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    const size_t spatial = args.stride.size();
    convolution(host, Convolution{args.x,
                                  args.weight,
                                  args.bias,
                                  args.residual,
                                  {args.stride, args.padding.first(spatial), args.padding.last(spatial), args.dilation,
                                   args.transposed, args.output_padding, args.groups},
                                  parse_activation(name, args.act),
                                  args.residual_first,
                                  args.tf32,
                                  y});
  }
};

}  // namespace fuseconv
