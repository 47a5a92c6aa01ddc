#include "ops/add_layer_norm.h"

namespace fuseconv {

template <class Isa>
void AddLayerNorm::cpu(CpuHost& host, In x, In residual, std::optional<In> weight, std::optional<In> bias, double eps,
                       bool keep_sum, Out y, Out sum) {
  norm(host, arguments(x, residual, weight, bias, eps, keep_sum, y, sum));
}

template void AddLayerNorm::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::optional<In>, double, bool,
                                                   Out, Out);

}  // namespace fuseconv
