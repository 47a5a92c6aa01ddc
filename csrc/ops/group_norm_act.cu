#include "ops/group_norm_act.h"

namespace fuseconv {

void GroupNormAct::cuda(CudaHost& host, In x, int64_t groups, std::optional<In> weight, std::optional<In> bias,
                        double eps, std::string_view act, Out y) {
  cuda::group_norm(host, arguments(x, groups, weight, bias, eps, act, y));
}

}  // namespace fuseconv
