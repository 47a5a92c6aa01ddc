// The elementwise part of a gated layer, after its product: y[..., n] = act(z[..., n]) z[..., H + n], n < H.
#pragma once

#include <algorithm>

#include "core/isa.h"
#include "core/layout.h"

namespace fuseconv {

// Views the two halves of z [..., 2H] as the tensors `gate` and `up` [..., H]. `View` is In or Out.
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

// The formula of a gated layer, applied to (gate, up).
template <class Act>
struct Gated {
  Act act;

  template <class A>
  FUSECONV_INLINE A operator()(A gate, A up) const {
    return up * act(gate);
  }
};

}  // namespace fuseconv
