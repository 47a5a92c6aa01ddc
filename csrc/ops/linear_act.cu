#include "kernels/pointwise.cuh"
#include "ops/linear_act.h"

namespace fuseconv {

void LinearAct::cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                     std::string_view act, Out y) {
  host.linear(x, weight, bias, y);
  const Activation activation = parse_activation(name, act);
  if (activation == Activation::none && !residual) {
    return;
  }
  dispatch(activation, [&]<class Act>(Act) {
    if (residual) {
      cuda::pointwise(host, Epilogue<Act>{}, y, In(y), *residual);
    } else {
      cuda::pointwise(host, Epilogue<Act>{}, y, In(y));
    }
  });
}

}  // namespace fuseconv
