#include "ops/add_rms_norm.h"

namespace fuseconv {

void AddRmsNorm::cuda(CudaHost& host, In x, In residual, std::optional<In> weight, double eps, bool keep_sum, Out y,
                      Out sum) {
  cuda::norm(host, arguments(x, residual, weight, eps, keep_sum, y, sum));
}

}  // namespace fuseconv
