#include "ops/add_layer_norm.h"

namespace fuseconv {

void AddLayerNorm::cuda(CudaHost& host, In x, In residual, std::optional<In> weight, std::optional<In> bias, double eps,
                        bool keep_sum, Out y, Out sum) {
  cuda::norm(host, arguments(x, residual, weight, bias, eps, keep_sum, y, sum));
}

}  // namespace fuseconv
