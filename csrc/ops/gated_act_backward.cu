#include "kernels/pointwise.cuh"
#include "ops/gated_act_backward.h"

namespace fuseconv {

void GatedActBackward::cuda(CudaHost& host, In grad, In z, std::string_view act, Out d) {
  const Halves from(z);
  const Halves to(d);
  dispatch(parse_activation(name, act), [&]<class Act>(Act) {
    cuda::pointwise(host, Gate<Act>{}, to.gate, grad, from.gate, from.up);
    cuda::pointwise(host, Up<Act>{}, to.up, grad, from.gate);
  });
}

}  // namespace fuseconv
