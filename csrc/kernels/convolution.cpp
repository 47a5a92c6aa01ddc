#include "kernels/convolution.h"

#include "core/layout.h"
#include "kernels/convolution_padding.h"
#include "kernels/convolution_pass.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

void convolution(CpuHost& host, const Convolution& c) {
  if (element_count(c.y) > 0) {
    const In z = host_convolution(host, c, c.bias);
    convolution_pass(host, {z, std::nullopt, c.residual, c.activation, c.residual_first}, c.y);
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
