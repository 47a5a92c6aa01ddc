// y[..., n] = act(z[..., n]) z[..., H + n], n < H: the elementwise part of a gated layer
#pragma once

#include <array>
#include <string_view>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/gated.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct GatedAct {
  static constexpr const char* name = "gated_act";
  static constexpr const char* schema = "gated_act(Tensor z, str act) -> Tensor";

  struct Args {
    In z;
    std::string_view act;
  };

  static std::array<Spec, 1> outputs(const Args& args) {
    common_dtype(name, {{"z", args.z}});
    check_halves(name, args.z);
    parse_activation(name, args.act);
    const Halves halves(args.z);
    return {broadcast(name, {"gate", halves.gate}, {"up", halves.up})};
  }

  template <class Target>
  static void run(typename Target::Host& host, const Args& args, Out y) {
    const Halves halves(args.z);
    activated_pointwise<Gated>(host, parse_activation(name, args.act), y, halves.gate, halves.up);
  }

  static void check_halves(const char* op, In z) {
    check_has_dims(op, {"z", z});
    check(z.sizes[z.rank - 1] % 2 == 0, "fuseconv::", op,
          ": z must have the shape [..., 2H], gates before ups, but has ", SizesText{z});
  }
};

}  // namespace fuseconv
