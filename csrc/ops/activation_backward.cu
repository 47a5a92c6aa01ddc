#include "kernels/column_sum.cuh"
#include "kernels/pointwise.cuh"
#include "ops/activation_backward.h"

namespace fuseconv {

void ActivationBackward::cuda(CudaHost& host, In grad, In y, std::string_view act, bool sum_rows, Out d, Out sum) {
  dispatch(act, [&]<class Formula>(Formula formula) {
    if (sum_rows) {
      cuda::pointwise_and_column_sum(host, formula, d, sum, grad, y);
    } else {
      cuda::pointwise(host, formula, d, grad, y);
    }
  });
}

}  // namespace fuseconv
