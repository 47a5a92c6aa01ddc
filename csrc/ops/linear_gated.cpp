#include "ops/linear_gated.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void LinearGated::cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y) {
  const Halves halves(host, x, weight, y);
  host.linear(x, weight, bias, halves.product);
  dispatch(parse_activation(name, act),
           [&]<class Act>(Act) { pointwise(host, Formula<Act>{}, y, halves.gate, halves.up); });
}

template void LinearGated::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::string_view, Out);

}  // namespace fuseconv
