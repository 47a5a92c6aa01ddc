// y[o] = sum over the dims `dim` of x^2; all dims if it names none
#pragma once

#include <array>
#include <span>

#include "core/host.h"
#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {

struct SumSquared {
  static constexpr const char* name = "sum_squared";
  static constexpr const char* schema = "sum_squared(Tensor x, int[] dim, bool keepdim=False) -> Tensor";

  static std::array<Spec, 1> outputs(In x, std::span<const int64_t> dim, bool keepdim) {
    common_dtype(name, {{"x", x}});
    return {reduced(name, {"x", x}, dim, keepdim)};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, std::span<const int64_t> dim, bool keepdim, Out y);
  static void cuda(CudaHost& host, In x, std::span<const int64_t> dim, bool keepdim, Out y);

  struct Formula {
    template <class A>
    FUSECONV_INLINE void term(const A& x, A& t) const {
      t = x * x;
    }
    template <class A>
    FUSECONV_INLINE A finish(A total, int64_t) const {
      return total;
    }
  };
};

}  // namespace fuseconv
