#include "kernels/linear.cuh"
#include "ops/linear_gated.h"

namespace fuseconv {

void LinearGated::cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y) {
  linear::Problem problem{};
  problem.activation = parse_activation(name, act);
  problem.gated = 1;
  cuda::run_linear(host, problem, x, weight, bias, std::nullopt, std::nullopt, y);
}

}  // namespace fuseconv
