#include "kernels/pointwise.cuh"
#include "ops/linear_gated.h"

namespace fuseconv {

void LinearGated::cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y) {
  const Halves halves(host, x, weight, y);
  host.linear(x, weight, bias, halves.product);
  dispatch(parse_activation(name, act),
           [&]<class Act>(Act) { cuda::pointwise(host, Formula<Act>{}, y, halves.gate, halves.up); });
}

}  // namespace fuseconv
