#include "ops/mul_add.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void MulAdd::cpu(CpuHost& host, In a, In b, In c, Out y) {
  pointwise(host, Formula{}, y, a, b, c);
}

template void MulAdd::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, In, Out);

}  // namespace fuseconv
