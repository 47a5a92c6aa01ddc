// Computes a convolution and its epilogue on CUDA. One kernel computes both for a depthwise convolution (fuseconv's
// kernel), for a 1x1 convolution with stride 1 (a linear layer), and for other convolutions that cuDNN supports. In all
// other cases, the host computes the convolution, and an elementwise pass computes the epilogue.
#include "kernels/convolution.h"

#include <algorithm>
#include <span>

#include "core/cuda.cuh"
#include "core/layout.h"
#include "cudnn/convolution.h"
#include "kernels/convolution_padding.h"
#include "kernels/convolution_pass.h"
#include "kernels/depthwise.h"
#include "kernels/linear.h"
#include "kernels/pixels.h"
#include "kernels/transpose.h"
#include "tuning/process.h"

namespace fuseconv::cuda {
namespace {

bool is_depthwise(const Convolution& c) { return c.parameters.groups > 1 && c.weight.sizes[1] == 1; }

// Returns whether a tensor has fewer than 2^31 elements, also after padding to four channels. With more elements,
// cuDNN's engines fail or read wrong addresses.
bool is_small(In tensor) {
  const int64_t channels = tensor.sizes[1];
  return element_count(tensor) / channels * std::max<int64_t>(channels, kPixelChannels) < (int64_t{1} << 31);
}

// Returns whether to use cuDNN's fused engines. cuDNN without fusion is faster for other layouts, and ten times as fast
// for depthwise convolutions.
bool is_for_cudnn(const Convolution& c) {
  return (c.y.dtype == Dtype::f16 || c.y.dtype == Dtype::bf16) && fits_channels_last(c.y) && !c.parameters.transposed &&
         !is_depthwise(c) && (c.parameters.groups == 1 || c.weight.sizes[1] >= kPixelChannels) && is_small(c.x) &&
         is_small(c.y) && (!c.bias || (c.bias->strides[0] == 1 && is_aligned(c.bias->data)));
}

// Returns the tensor if it is channels last and aligned, otherwise a copy that is. Images and filters with fewer than 4
// channels are padded with channels of zeros: cuDNN handles 4 channels faster than 3, which it would copy itself.
In laid_out(CudaHost& host, In tensor, Spec& spec) {
  if (tensor.rank == 4 && tensor.sizes[1] < kPixelChannels) {
    const int64_t sizes[] = {tensor.sizes[0], kPixelChannels, tensor.sizes[2], tensor.sizes[3]};
    spec = channels_last(tensor.dtype, tensor.rank, sizes);
    void* const data = host.scratch(static_cast<size_t>(element_count(spec) * size_of(spec.dtype)));
    pack_pixels(host, tensor, {data, spec.dtype, spec.rank, spec.sizes, spec.strides});
    return {data, spec.dtype, spec.rank, spec.sizes, spec.strides};
  }
  if (fits_channels_last(tensor) && is_aligned(tensor.data)) {
    return tensor;
  }
  spec = channels_last(tensor.dtype, tensor.rank, tensor.sizes);
  void* const data = host.scratch(static_cast<size_t>(element_count(spec) * size_of(spec.dtype)));
  copy(host, tensor, {data, spec.dtype, spec.rank, spec.sizes, spec.strides});
  return {data, spec.dtype, spec.rank, spec.sizes, spec.strides};
}

bool by_cudnn(CudaHost& host, const Convolution& c) {
  if (!is_for_cudnn(c)) {
    return false;
  }
  Spec x, weight;
  const bool adds = c.residual && fits_channels_last(*c.residual) && is_aligned(c.residual->data) &&
                    (c.residual_first || c.activation == Activation::none);
  bool activates = c.activation == Activation::relu && (!c.residual || adds);
  cudnn::Problem problem{laid_out(host, c.x, x),
                         laid_out(host, c.weight, weight),
                         c.bias,
                         adds ? c.residual : std::nullopt,
                         c.parameters,
                         activates,
                         c.y};
  if (activates && !cudnn::run(host, problem, tuning::may_time())) {
    problem.relu = activates = false;
  }
  if (!activates && !cudnn::run(host, problem, tuning::may_time())) {
    return false;
  }
  const ConvolutionPass rest{c.y, std::nullopt, adds ? std::nullopt : c.residual,
                             activates ? Activation() : c.activation, c.residual_first};
  convolution_pass(host, rest, c.y);
  return true;
}

bool all(std::span<const int64_t> numbers, int64_t value) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) { return number == value; });
}

// Views a channels-last tensor [N, C, ...] as its rows, [positions, C].
struct Rows {
  int64_t sizes[2], strides[2];

  explicit Rows(In tensor)
      : sizes{tensor.sizes[1] == 0 ? 0 : element_count(tensor) / tensor.sizes[1], tensor.sizes[1]},
        strides{tensor.sizes[1], 1} {}
  In of(In tensor) const { return {tensor.data, tensor.dtype, 2, sizes, strides}; }
};

bool as_linear(CudaHost& host, const Convolution& c) {
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  const bool is_half = c.y.dtype == Dtype::f16 || c.y.dtype == Dtype::bf16;
  if (!is_half || c.x.rank < 4 || transposed || groups != 1 || !all(stride, 1) || !all(padding, 0) || !all(after, 0) ||
      !all({c.weight.sizes + 2, c.weight.sizes + c.weight.rank}, 1) || !fits_channels_last(c.x) ||
      !fits_channels_last(c.y) || (c.residual && !fits_channels_last(*c.residual))) {
    return false;
  }
  const Rows x(c.x), y(c.y);
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
                      {c.y.data, c.y.dtype, 2, y.sizes, y.strides},
                      c.residual_first});
  return true;
}

}  // namespace

void convolution(CudaHost& host, const Convolution& c) {
  if (element_count(c.y) == 0 || depthwise(host, c) || as_linear(host, c) || by_cudnn(host, c)) {
    return;
  }
  // torch would add the bias in a separate pass.
  const In z = host_convolution(host, c, std::nullopt);
  convolution_pass(host, {z, c.bias, c.residual, c.activation, c.residual_first}, c.y);
}

}  // namespace fuseconv::cuda
