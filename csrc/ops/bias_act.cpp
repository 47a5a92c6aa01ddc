#include "ops/bias_act.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void BiasAct::cpu(CpuHost& host, In x, In bias, std::string_view act, Out y) {
  dispatch(parse_activation(name, act), [&]<class Act>(Act) { pointwise(host, Formula<Act>{}, y, x, bias); });
}

template void BiasAct::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::string_view, Out);

}  // namespace fuseconv
