#include "ops/linear_gated.h"

namespace fuseconv {

template <class Isa>
void LinearGated::cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y) {
  const Spec spec = product_of(x, weight);
  const Out z{host.scratch(static_cast<size_t>(element_count(spec) * size_of(y.dtype))), spec.dtype, spec.rank,
              spec.sizes, spec.strides};
  host.linear(x, weight, bias, z);
  GatedAct::cpu<Isa>(host, z, act, y);
}

template void LinearGated::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::string_view, Out);

}  // namespace fuseconv
