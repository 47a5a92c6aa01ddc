#include "ops/add_relu.h"

#include "core/pointwise.h"

namespace fuseconv {

template <class Isa>
void AddRelu::cpu(Host& host, In a, In b, Out y) {
  pointwise(host, Formula{}, y, a, b);
}

template void AddRelu::cpu<isa::FUSECONV_ISA>(Host&, In, In, Out);

}  // namespace fuseconv
