// The heads of attention: their sizes and their layouts.
#pragma once

#include <cstdint>

#include "core/layout.h"

namespace fuseconv {

// Checks the sizes of attention's operands q [..., H, S, D], k [..., G, T, D] and v [..., G, T, E], where G divides H.
void check_heads(const char* op, In q, In k, In v);

// Returns the Spec of a tensor [..., H, S, E] that is stored as a contiguous tensor [..., S, H, E]. `sizes` contains
// its sizes.
Spec adjacent_heads(Spec sizes);

// Returns the view [..., G, H / G, S, D] of a tensor [..., H, S, D], for which the caller has checked that G divides H.
// A tensor of G heads instead of H, [..., G, S, D], gets the same sizes: each of its heads is repeated with a stride
// of 0. The view has one dim more than the tensor.
Spec heads_in_groups(In x, int64_t heads, int64_t groups);

}  // namespace fuseconv
