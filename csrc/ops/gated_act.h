// y[..., n] = act(z[..., n]) z[..., H + n], n < H: what a gated layer does after its product
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

// The halves of z [..., 2H] as views [..., H]. View is In or Out.
template <class View>
struct Halves {
  int64_t sizes[kMaxRank];
  View gate, up;

  explicit Halves(View z) : gate(z), up(z) {
    std::copy(z.sizes, z.sizes + z.rank, sizes);
    sizes[z.rank - 1] /= 2;
    gate.sizes = up.sizes = sizes;
    const auto address = reinterpret_cast<uintptr_t>(z.data);
    const int64_t offset = sizes[z.rank - 1] * z.strides[z.rank - 1] * size_of(z.dtype);
    up.data = reinterpret_cast<decltype(up.data)>(address + static_cast<uintptr_t>(offset));
  }
  Halves(const Halves&) = delete;
};

struct GatedAct {
  static constexpr const char* name = "gated_act";
  static constexpr const char* schema = "gated_act(Tensor z, str act) -> Tensor";

  static std::array<Spec, 1> outputs(In z, std::string_view act) {
    common_dtype(name, {{"z", z}});
    check_halves(name, z);
    parse_activation(name, act);
    return {contiguous(z.dtype, z.rank, Halves(z).sizes)};
  }

  template <class Isa>
  static void cpu(CpuHost& host, In z, std::string_view act, Out y);
  static void cuda(CudaHost& host, In z, std::string_view act, Out y);

  static void check_halves(const char* op, In z) {
    check_has_dims(op, {"z", z});
    check(z.sizes[z.rank - 1] % 2 == 0, "fuseconv::", op,
          ": z must have the shape [..., 2H], gates before ups, but has ", to_string(z));
  }

  template <class Act>
  struct Formula {
    Act act;

    template <class A>
    FUSECONV_INLINE A operator()(A gate, A up) const {
      return up * act(gate);
    }
  };
};

}  // namespace fuseconv
