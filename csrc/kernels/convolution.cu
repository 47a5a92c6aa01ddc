// Computes a convolution and its epilogue on CUDA. There are kernels for depthwise convolutions, images of few
// channels, 1x1 convolutions with stride 1 (linear layers), and dense convolutions in 16 bits. In all other cases, the
// host computes the convolution, and an elementwise pass computes the epilogue.
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

namespace fuseconv::cuda {
namespace {

bool all(std::span<const int64_t> numbers, int64_t value) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) { return number == value; });
}

bool as_linear(CudaHost& host, const Convolution& c) {
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  const bool is_half = c.y.dtype == Dtype::f16 || c.y.dtype == Dtype::bf16;
  if (!is_half || transposed || groups != 1 || !all(stride, 1) || !all(padding, 0) || !all(after, 0) ||
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
                      false,
                      std::nullopt,
                      {c.y.data, c.y.dtype, c.y.rank, y.sizes, y.strides},
                      c.residual_first});
  return true;
}

}  // namespace

void convolution(CudaHost& host, const Convolution& c) {
  if (element_count(c.y) == 0 || depthwise(host, c) || few_channels(host, c) || as_linear(host, c) ||
      dense_convolution(host, c)) {
    return;
  }
  // torch would add the bias in a separate pass.
  const In z = host_convolution(host, c, std::nullopt);
  convolution_pass(host, {z, c.bias, c.residual, c.activation, c.residual_first}, c.y);
}

}  // namespace fuseconv::cuda
