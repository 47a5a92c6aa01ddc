#include "ops/norm_backward.h"

namespace fuseconv {

template <class Isa>
void NormBackward::cpu(CpuHost& host, In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double eps,
                       bool centred, bool affine, Out grad_x, Out grad_weight, Out grad_bias) {
  norm_backward(host, arguments(grad, x, weight, grad_sum, eps, centred, affine, grad_x, grad_weight, grad_bias));
}

template void NormBackward::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::optional<In>, double, bool,
                                                   bool, Out, Out, Out);

}  // namespace fuseconv
