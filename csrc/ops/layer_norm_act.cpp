#include "ops/layer_norm_act.h"

namespace fuseconv {

template <class Isa>
void LayerNormAct::cpu(CpuHost& host, In x, std::optional<In> weight, std::optional<In> bias, double eps,
                       std::string_view act, Out y) {
  norm(host, arguments(x, weight, bias, eps, act, y));
}

template void LayerNormAct::cpu<isa::FUSECONV_ISA>(CpuHost&, In, std::optional<In>, std::optional<In>, double,
                                                   std::string_view, Out);

}  // namespace fuseconv
