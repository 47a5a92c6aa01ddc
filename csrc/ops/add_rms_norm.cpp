#include "ops/add_rms_norm.h"

namespace fuseconv {

template <class Isa>
void AddRmsNorm::cpu(CpuHost& host, In x, In residual, std::optional<In> weight, double eps, bool keep_sum, Out y,
                     Out sum) {
  norm(host, arguments(x, residual, weight, eps, keep_sum, y, sum));
}

template void AddRmsNorm::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, double, bool, Out, Out);

}  // namespace fuseconv
