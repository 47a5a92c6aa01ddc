// Tensors in the scratch memory of a host.
#pragma once

#include "core/host.h"

namespace fuseconv {

// Returns an uninitialized tensor as `spec` describes it, in scratch memory. The tensor refers to the sizes and strides
// of `spec`, which must live as long.
Out in_scratch(Host& host, const Spec& spec);

}  // namespace fuseconv
