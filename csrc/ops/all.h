// The one list of ops. Bindings fold over it; nothing else names an op.
#pragma once

#include <tuple>

#include "ops/add_relu.h"

namespace fuseconv {

using AllOps = std::tuple<AddRelu>;

}  // namespace fuseconv
