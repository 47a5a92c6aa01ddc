#include "kernels/pointwise.cuh"
#include "ops/bias_act.h"

namespace fuseconv {

void BiasAct::cuda(CudaHost& host, In x, In bias, std::string_view act, Out y) {
  dispatch(parse_activation(name, act), [&]<class Act>(Act) { cuda::pointwise(host, Formula<Act>{}, y, x, bias); });
}

}  // namespace fuseconv
