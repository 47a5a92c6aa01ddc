#include "kernels/implicit_gemm.h"

#include "core/cuda.cuh"
#include "core/layout.h"
#include "kernels/transpose.h"

namespace fuseconv::cuda {
namespace {

linear::Windows windows_of(const Convolution& c) {
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  const int64_t channels = c.x.sizes[1], height = c.x.sizes[2], width = c.x.sizes[3];
  return {number(height),
          number(width),
          number(channels),
          number(c.weight.sizes[2]),
          number(c.weight.sizes[3]),
          number(c.y.sizes[2]),
          number(c.y.sizes[3]),
          number(stride[0]),
          number(stride[1]),
          number(padding[0]),
          number(padding[1]),
          number(dilation[0]),
          number(dilation[1]),
          height * width * channels,
          width * channels,
          channels};
}

}  // namespace

In laid_out(CudaHost& host, In tensor, Spec& spec) {
  if (fits_channels_last(tensor) && is_aligned(tensor.data)) {
    return tensor;
  }
  spec = channels_last(tensor.dtype, tensor.rank, tensor.sizes);
  void* const data = host.scratch(static_cast<size_t>(element_count(spec) * size_of(spec.dtype)));
  copy(host, tensor, {data, spec.dtype, spec.rank, spec.sizes, spec.strides});
  return {data, spec.dtype, spec.rank, spec.sizes, spec.strides};
}

linear::Problem problem_of(const Convolution& c) {
  linear::Problem p{};
  p.element = c.y.dtype;
  p.activation = c.activation;
  p.n = c.y.sizes[1];
  p.m = element_count(c.y) / p.n;
  p.y = c.y.data;
  p.y_stride = p.residual_stride = p.n;
  p.bias = c.bias ? c.bias->data : nullptr;
  p.residual = c.residual ? c.residual->data : nullptr;
  p.residual_first = c.residual && c.residual_first && c.activation != Activation::none;
  if (c.x.rank == 4 && c.parameters.groups == 1) {
    p.windows = windows_of(c);
    p.k = p.x_stride = p.weight_stride = int64_t{p.windows.positions()} * p.windows.channels;
  }
  return p;
}

void set_operands(CudaHost& host, const Convolution& c, linear::Problem& p) {
  if (p.x == nullptr) {
    Spec spec;
    p.x = laid_out(host, c.x, spec).data;
    p.weight = laid_out(host, c.weight, spec).data;
  }
}

}  // namespace fuseconv::cuda
