#include "kernels/pointwise.cuh"
#include "ops/gated_act.h"

namespace fuseconv {

void GatedAct::cuda(CudaHost& host, In z, std::string_view act, Out y) {
  const Halves halves(z);
  dispatch(parse_activation(name, act),
           [&]<class Act>(Act) { cuda::pointwise(host, Formula<Act>{}, y, halves.gate, halves.up); });
}

}  // namespace fuseconv
