#include "ops/gelu_dropout.h"

#include "kernels/philox.h"
#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void GeluDropout::cpu(CpuHost& host, In x, In seed, double p, Out y) {
  pointwise(host, Formula{}, y, x, KeepFactors(seed.data, p));
}

template void GeluDropout::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, double, Out);

}  // namespace fuseconv
