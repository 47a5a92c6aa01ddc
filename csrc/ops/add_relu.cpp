#include "ops/add_relu.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void AddRelu::cpu(CpuHost& host, In a, In b, Out y) {
  pointwise(host, Formula{}, y, a, b);
}

template void AddRelu::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, Out);

}  // namespace fuseconv
