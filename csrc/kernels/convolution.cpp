#include "kernels/convolution.h"

#include "core/layout.h"
#include "kernels/convolution_padding.h"
#include "kernels/convolution_pass.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

namespace {

// The largest window for which oneDNN, in torch 2.13, finishes generating its code for channels-last depthwise
// convolutions in bf16 on CPUs with AVX512-BF16. For windows of 210 elements it had not finished after ten minutes.
constexpr int64_t kLargestWindow = 196;

bool needs_contiguous(const Convolution& c) {
  const int64_t window = element_count(c.weight) / (c.weight.sizes[0] * c.weight.sizes[1]);
  return c.x.dtype == Dtype::bf16 && c.weight.sizes[1] == 1 && c.parameters.groups > 1 && window > kLargestWindow;
}

void run(CpuHost& host, const Convolution& c) {
  const In z = host_convolution(host, c, c.bias);
  convolution_pass(host, {z, std::nullopt, c.residual, c.activation, c.residual_first}, c.y);
}

}  // namespace

void convolution(CpuHost& host, const Convolution& c) {
  if (element_count(c.y) == 0) {
    return;
  }
  if (!needs_contiguous(c)) {
    return run(host, c);
  }
  const Spec image = contiguous(c.x.dtype, c.x.rank, c.x.sizes);
  const Spec filter = contiguous(c.weight.dtype, c.weight.rank, c.weight.sizes);
  const Out x = in_scratch(host, image), weight = in_scratch(host, filter);
  pointwise(host, Same{}, x, c.x);
  pointwise(host, Same{}, weight, c.weight);
  Convolution copied = c;
  copied.x = x;
  copied.weight = weight;
  run(host, copied);
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
