#include "kernels/pointwise.cuh"
#include "ops/bias_act.h"

namespace fuseconv {

void BiasAct::cuda(CudaHost& host, In x, In bias, std::string_view act, Out y) {
  cuda::activated_pointwise<Formula>(host, parse_activation(name, act), y, x, bias);
}

}  // namespace fuseconv
