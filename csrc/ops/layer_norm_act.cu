#include "kernels/layer_norm.cuh"
#include "ops/layer_norm_act.h"

namespace fuseconv {

void LayerNormAct::cuda(CudaHost& host, In x, std::optional<In> weight, std::optional<In> bias, double eps,
                        std::string_view act, Out y) {
  const LayerNorm arguments = norm(x, weight, bias, eps, act, y);
  dispatch(arguments.activation, [&]<class Act>(Act) { cuda::layer_norm<Act>(host, arguments); });
}

}  // namespace fuseconv
