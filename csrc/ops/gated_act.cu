#include "kernels/pointwise.cuh"
#include "ops/gated_act.h"

namespace fuseconv {

void GatedAct::cuda(CudaHost& host, In z, std::string_view act, Out y) {
  const Halves halves(z);
  cuda::activated_pointwise<Formula>(host, parse_activation(name, act), y, halves.gate, halves.up);
}

}  // namespace fuseconv
