// y[..., c] = act(x[..., c] + bias[c])
#pragma once

#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct BiasAct {
  static constexpr const char* name = "bias_act";
  static constexpr const char* schema = "bias_act(Tensor x, Tensor bias, str act) -> Tensor";

  static std::array<Spec, 1> outputs(In x, In bias, std::string_view act) {
    common_dtype(name, {{"x", x}, {"bias", bias}});
    check_vector(name, {"bias", bias}, {"x", x});
    parse_activation(name, act);
    return {broadcast(name, {"x", x}, {"bias", bias})};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, In bias, std::string_view act, Out y);
  static void cuda(CudaHost& host, In x, In bias, std::string_view act, Out y);

  template <class Act>
  struct Formula {
    Act act;

    template <class A>
    FUSECONV_INLINE A operator()(A x, A bias) const {
      return act(x + bias);
    }
  };
};

}  // namespace fuseconv
