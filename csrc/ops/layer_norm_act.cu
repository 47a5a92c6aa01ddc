#include "ops/layer_norm_act.h"

namespace fuseconv {

void LayerNormAct::cuda(CudaHost& host, In x, std::optional<In> weight, std::optional<In> bias, double eps,
                        std::string_view act, Out y) {
  cuda::norm(host, arguments(x, weight, bias, eps, act, y));
}

}  // namespace fuseconv
