#include "kernels/convolution.h"

#include "core/layout.h"
#include "kernels/convolution_padding.h"
#include "kernels/convolution_pass.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

namespace {

// torch 2.13's oneDNN generates code without end for channels-last depthwise convolutions in bf16 with larger windows,
// on CPUs with AVX512-BF16: windows of 210 elements were not done after ten minutes.
constexpr int64_t kLargestWindow = 196;

bool needs_contiguous(const Convolution& c) {
  const int64_t window = element_count(c.weight) / (c.weight.sizes[0] * c.weight.sizes[1]);
  return c.x.dtype == Dtype::bf16 && c.weight.sizes[1] == 1 && c.parameters.groups > 1 && window > kLargestWindow;
}

}  // namespace

void convolution(CpuHost& host, const Convolution& given) {
  Convolution c = given;
  if (element_count(c.y) > 0) {
    const Spec image = contiguous(c.x.dtype, c.x.rank, c.x.sizes);
    const Spec filter = contiguous(c.weight.dtype, c.weight.rank, c.weight.sizes);
    if (needs_contiguous(c)) {
      const Out x = in_scratch(host, image), weight = in_scratch(host, filter);
      pointwise(host, Same{}, x, c.x);
      pointwise(host, Same{}, weight, c.weight);
      c.x = x;
      c.weight = weight;
    }
    const In z = host_convolution(host, c, c.bias);
    convolution_pass(host, {z, std::nullopt, c.residual, c.activation, c.residual_first}, c.y);
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
