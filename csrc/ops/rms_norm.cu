#include "ops/rms_norm.h"

namespace fuseconv {

void RmsNorm::cuda(CudaHost& host, In x, std::optional<In> weight, double eps, std::string_view act, Out y) {
  cuda::norm(host, arguments(x, weight, eps, act, y));
}

}  // namespace fuseconv
