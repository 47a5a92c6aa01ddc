#include "ops/rms_norm.h"

namespace fuseconv {

template <class Isa>
void RmsNorm::cpu(CpuHost& host, In x, std::optional<In> weight, double eps, std::string_view act, Out y) {
  norm(host, arguments(x, weight, eps, act, y));
}

template void RmsNorm::cpu<isa::FUSECONV_ISA>(CpuHost&, In, std::optional<In>, double, std::string_view, Out);

}  // namespace fuseconv
