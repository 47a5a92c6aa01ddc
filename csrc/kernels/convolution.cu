// Computes a convolution and its epilogue on CUDA. There are kernels for depthwise convolutions, images of few
// channels, 1x1 convolutions with stride 1 (linear layers), and dense convolutions, most of them in 16 bits and in f32.
// Products of f32 are computed in TF32, as PyTorch's convolutions do by default, unless `tf32` is false. In all other
// cases, the host computes the convolution, and an elementwise pass computes the epilogue.
#include "kernels/convolution.h"

#include <algorithm>
#include <span>

#include "core/cuda.cuh"
#include "core/layout.h"
#include "kernels/convolution_padding.h"
#include "kernels/convolution_pass.h"
#include "kernels/dense_convolution.h"
#include "kernels/dense_rows.h"
#include "kernels/depthwise.h"
#include "kernels/few_channels.h"
#include "kernels/linear.h"
#include "kernels/transpose.h"

namespace fuseconv::cuda {
namespace {

// PyTorch computes f32 convolutions of so few channels in f32, not in TF32, if the operands are contiguous.
constexpr int64_t kFewChannels = 4;

bool all(std::span<const int64_t> numbers, int64_t value) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) { return number == value; });
}

bool as_linear(CudaHost& host, const Convolution& c) {
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  if (c.y.dtype == Dtype::f64 || transposed || groups != 1 || !all(stride, 1) || !all(padding, 0) || !all(after, 0) ||
      !all({c.weight.sizes + 2, c.weight.sizes + c.weight.rank}, 1) || !fits_channels_last(c.y) ||
      !(fits_channels_last(c.x) || is_channels_last(c.x)) || (c.residual && !fits_channels_last(*c.residual))) {
    return false;
  }
  const PixelRows x(c.x), y(c.y);
  const In weight{c.weight.data, c.weight.dtype, 2, c.weight.sizes, c.weight.strides};
  const std::optional<In> residual = c.residual ? std::optional(y.of(*c.residual)) : std::nullopt;
  linear_layer(host, {x.of(c.x),
                      weight,
                      c.bias,
                      residual,
                      c.activation,
                      false,
                      c.tf32 && c.y.dtype == Dtype::f32 && c.x.sizes[1] > kFewChannels,
                      std::nullopt,
                      {c.y.data, c.y.dtype, c.y.rank, y.sizes, y.strides},
                      c.residual_first});
  return true;
}

// Returns the tensor if it is contiguous, otherwise a copy that is.
In in_order(CudaHost& host, In tensor, Spec& spec) {
  if (is_contiguous(tensor)) {
    return tensor;
  }
  spec = contiguous_like(tensor);
  return copied(host, tensor, spec);
}

}  // namespace

void convolution(CudaHost& host, const Convolution& c) {
  const bool is_in_f32 = c.y.dtype == Dtype::f32 && c.parameters.groups == 1 && c.x.sizes[1] <= kFewChannels;
  if (element_count(c.y) == 0 || depthwise(host, c) || depthwise_windows(host, c) || few_channels(host, c) ||
      as_linear(host, c) || (!is_in_f32 && dense_convolution(host, c))) {
    return;
  }
  Convolution given = c;
  Spec x, weight;
  if (is_in_f32) {
    given.x = in_order(host, c.x, x);
    given.weight = in_order(host, c.weight, weight);
  }
  // torch would add the bias in a separate pass.
  const In z = host_convolution(host, given, std::nullopt);
  convolution_pass(host, {z, c.bias, c.residual, c.activation, c.residual_first}, c.y);
}

}  // namespace fuseconv::cuda
