#include "ops/mul_tanh.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void MulTanh::cpu(CpuHost& host, In a, In b, Out y) {
  pointwise(host, Formula{}, y, a, b);
}

template void MulTanh::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, Out);

}  // namespace fuseconv
