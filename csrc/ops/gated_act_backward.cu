#include "kernels/pointwise.cuh"
#include "ops/gated_act_backward.h"

namespace fuseconv {

void GatedActBackward::cuda(CudaHost& host, In grad, In z, std::string_view act, Out d) {
  const Halves from(z);
  const Halves to(d);
  const Activation activation = parse_activation(name, act);
  cuda::activated_pointwise<Gate>(host, activation, to.gate, grad, from.gate, from.up);
  cuda::activated_pointwise<Up>(host, activation, to.up, grad, from.gate);
}

}  // namespace fuseconv
