#include "ops/gated_act.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void GatedAct::cpu(CpuHost& host, In z, std::string_view act, Out y) {
  const Halves halves(z);
  dispatch(parse_activation(name, act),
           [&]<class Act>(Act) { pointwise(host, Formula<Act>{}, y, halves.gate, halves.up); });
}

template void GatedAct::cpu<isa::FUSECONV_ISA>(CpuHost&, In, std::string_view, Out);

}  // namespace fuseconv
