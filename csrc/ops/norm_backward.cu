#include "ops/norm_backward.h"

namespace fuseconv {

void NormBackward::cuda(CudaHost& host, In grad, In x, std::optional<In> weight, std::optional<In> grad_sum, double eps,
                        bool centred, bool affine, Out grad_x, Out grad_weight, Out grad_bias) {
  cuda::norm_backward(host, arguments(grad, x, weight, grad_sum, eps, centred, affine, grad_x, grad_weight, grad_bias));
}

}  // namespace fuseconv
