#include "ops/group_norm_act.h"

namespace fuseconv {

template <class Isa>
void GroupNormAct::cpu(CpuHost& host, In x, int64_t groups, std::optional<In> weight, std::optional<In> bias,
                       double eps, std::string_view act, Out y) {
  group_norm(host, arguments(x, groups, weight, bias, eps, act, y));
}

template void GroupNormAct::cpu<isa::FUSECONV_ISA>(CpuHost&, In, int64_t, std::optional<In>, std::optional<In>, double,
                                                   std::string_view, Out);

}  // namespace fuseconv
