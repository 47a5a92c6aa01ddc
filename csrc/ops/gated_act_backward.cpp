#include "ops/gated_act_backward.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void GatedActBackward::cpu(CpuHost& host, In grad, In z, std::string_view act, Out d) {
  const Halves from(z);
  const Halves to(d);
  dispatch(parse_activation(name, act), [&]<class Act>(Act) {
    pointwise(host, Gate<Act>{}, to.gate, grad, from.gate, from.up);
    pointwise(host, Up<Act>{}, to.up, grad, from.gate);
  });
}

template void GatedActBackward::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::string_view, Out);

}  // namespace fuseconv
