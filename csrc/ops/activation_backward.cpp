#include "ops/activation_backward.h"

#include "kernels/column_sum.h"
#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void ActivationBackward::cpu(CpuHost& host, In grad, In y, std::string_view act, bool sum_rows, Out d, Out sum) {
  dispatch(act, [&]<class Formula>(Formula formula) {
    if (sum_rows) {
      pointwise_and_column_sum(host, formula, d, sum, grad, y);
    } else {
      pointwise(host, formula, d, grad, y);
    }
  });
}

template void ActivationBackward::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::string_view, bool, Out, Out);

}  // namespace fuseconv
