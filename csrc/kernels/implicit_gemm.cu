#include "kernels/implicit_gemm.h"

#include "core/cuda.cuh"
#include "core/layout.h"
#include "kernels/transpose.h"

namespace fuseconv::cuda {
namespace {

// Returns whether TMA can read the pixels of x where they are: they are channels last, perhaps with gaps, and aligned.
bool is_gathered_in_place(In x) {
  const auto is_whole = [&](int axis) {
    return x.strides[axis] > 0 && x.strides[axis] % (kVectorBytes / size_of(x.dtype)) == 0;
  };
  return is_aligned(x.data) && is_channels_last(x) && is_whole(0) && is_whole(2) && is_whole(3);
}

linear::Windows windows_of(const Convolution& c) {
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  const auto& [stride, padding, after, dilation, transposed, more, groups] = c.parameters;
  const int64_t channels = c.x.sizes[1] / groups, height = c.x.sizes[2], width = c.x.sizes[3];
  // The strides of x, or of the copy that `set_operands` makes.
  const Spec dense = channels_last(c.x.dtype, c.x.rank, c.x.sizes);
  const int64_t* const strides = is_gathered_in_place(c.x) ? c.x.strides : dense.strides;
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
          number(groups),
          strides[0],
          strides[2],
          strides[3]};
}

}  // namespace

In laid_out(CudaHost& host, In tensor, Spec& spec) {
  if (fits_channels_last(tensor) && is_aligned(tensor.data)) {
    return tensor;
  }
  spec = channels_last(tensor.dtype, tensor.rank, tensor.sizes);
  return copied(host, tensor, spec);
}

linear::Problem problem_of(const Convolution& c) {
  linear::Problem p{};
  p.element = c.y.dtype;
  p.tf32 = c.y.dtype == Dtype::f32 && c.tf32;
  p.activation = c.activation;
  p.n = c.y.sizes[1];
  p.m = element_count(c.y) / p.n;
  p.y = c.y.data;
  p.y_stride = p.residual_stride = p.n;
  p.bias = c.bias ? c.bias->data : nullptr;
  p.residual = c.residual ? c.residual->data : nullptr;
  p.residual_first = c.residual && c.residual_first && c.activation != Activation::none;
  if (c.x.rank == 4) {
    p.windows = windows_of(c);
    p.k = p.x_stride = p.weight_stride = int64_t{p.windows.positions()} * p.windows.channels;
  }
  return p;
}

void set_operands(CudaHost& host, const Convolution& c, linear::Problem& p) {
  if (p.x == nullptr) {
    Spec spec;
    p.x = is_gathered_in_place(c.x) ? c.x.data : laid_out(host, c.x, spec).data;
    p.weight = laid_out(host, c.weight, spec).data;
  }
}

}  // namespace fuseconv::cuda
