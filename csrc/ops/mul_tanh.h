// y = tanh(a * b), broadcasting
#pragma once

#include <array>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct MulTanh {
  static constexpr const char* name = "mul_tanh";
  static constexpr const char* schema = "mul_tanh(Tensor a, Tensor b) -> Tensor";

  static std::array<Spec, 1> outputs(In a, In b) {
    common_dtype(name, {{"a", a}, {"b", b}});
    return {broadcast(name, {"a", a}, {"b", b})};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In a, In b, Out y);
  static void cuda(CudaHost& host, In a, In b, Out y);

  struct Formula {
    template <class A>
    FUSECONV_INLINE A operator()(A a, A b) const {
      return hyperbolic_tangent(a * b);
    }
  };
};

}  // namespace fuseconv
