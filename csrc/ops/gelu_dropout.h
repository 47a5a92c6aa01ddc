// y[i] = gelu(x[i]) * keep[i] / (1 - p), i the element's row-major index; keep[i] is 0 with probability p, else 1, by
// the word of kernels/philox.h that the seed and i name. So the op is pure: the same call gives the same result, on
// every device.
#pragma once

#include <array>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct GeluDropout {
  static constexpr const char* name = "gelu_dropout";
  static constexpr const char* schema = "gelu_dropout(Tensor x, Tensor seed, float p) -> Tensor";

  static std::array<Spec, 1> outputs(In x, InI64 seed, double p) {
    common_dtype(name, {{"x", x}});
    check(seed.dtype == Dtype::i64 && element_count(seed) == 1, "fuseconv::", name,
          ": seed must be an int64 tensor of one element, but has the shape ", to_string(seed),
          seed.dtype == Dtype::i64 ? "" : " and another dtype");
    check(0 <= p && p <= 1, "fuseconv::", name, ": p must be from 0 to 1, but is ", p);
    return {broadcast(name, {"x", x}, {"x", x})};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In x, InI64 seed, double p, Out y);
  static void cuda(CudaHost& host, In x, InI64 seed, double p, Out y);

  struct Formula {
    static constexpr bool kCostly = true;  // an element takes longer to compute than to move

    template <class A>
    FUSECONV_INLINE A operator()(A x, A factor) const {
      const A y = Gelu{}(x);
      return y * factor;
    }
  };
};

}  // namespace fuseconv
