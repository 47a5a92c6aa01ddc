// y = a * b + c, broadcasting
#pragma once

#include <array>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {

struct MulAdd {
  static constexpr const char* name = "mul_add";
  static constexpr const char* schema = "mul_add(Tensor a, Tensor b, Tensor c) -> Tensor";

  static std::array<Spec, 1> outputs(In a, In b, In c) {
    common_dtype(name, {{"a", a}, {"b", b}, {"c", c}});
    const Spec product = broadcast(name, {"a", a}, {"b", b});
    return {broadcast(name, {"a * b", product}, {"c", c})};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In a, In b, In c, Out y);
  static void cuda(CudaHost& host, In a, In b, In c, Out y);

  struct Formula {
    template <class A>
    FUSECONV_INLINE A operator()(A a, A b, A c) const {
      return a * b + c;
    }
  };
};

}  // namespace fuseconv
