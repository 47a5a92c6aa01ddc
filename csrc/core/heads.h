// The layouts of attention's heads.
#pragma once

#include <cstdint>

#include "core/layout.h"

namespace fuseconv {

// Returns the Spec of a tensor [..., H, S, E] that is stored as a contiguous tensor [..., S, H, E]. `sizes` contains
// its sizes.
Spec adjacent_heads(Spec sizes);

// Returns the view [..., G, H / G, S, D] of a tensor [..., H, S, D], for which the caller has checked that G divides H.
// A tensor of G heads instead of H, [..., G, S, D], gets the same sizes: each of its heads is repeated with a stride
// of 0. The view has one dim more than the tensor.
Spec heads_in_groups(In x, int64_t heads, int64_t groups);

}  // namespace fuseconv
