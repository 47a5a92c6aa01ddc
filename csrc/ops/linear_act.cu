#include "kernels/linear.cuh"
#include "ops/linear_act.h"

namespace fuseconv {

void LinearAct::cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                     std::string_view act, std::string_view backend, bool tf32, Out y) {
  linear::Problem problem{};
  problem.activation = parse_activation(name, act);
  problem.tf32 = tf32;
  cuda::run_linear(host, problem, x, weight, bias, residual, linear::parse_backend(name, backend), y);
}

}  // namespace fuseconv
