#include "ops/linear_act.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void LinearAct::cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                    std::string_view act, std::string_view, bool, Out y) {
  host.linear(x, weight, bias, y);
  const Activation activation = parse_activation(name, act);
  if (activation == Activation::none && !residual) {
    return;
  }
  dispatch(activation, [&]<class Act>(Act) {
    if (residual) {
      pointwise(host, Epilogue<Act>{}, y, In(y), *residual);
    } else {
      pointwise(host, Epilogue<Act>{}, y, In(y));
    }
  });
}

template void LinearAct::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::optional<In>,
                                                std::string_view, std::string_view, bool, Out);

}  // namespace fuseconv
