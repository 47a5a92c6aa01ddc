#include "ops/sum_squared.h"

#include "kernels/reduce.h"

namespace fuseconv {

template <class Isa>
void SumSquared::cpu(CpuHost& host, In x, std::span<const int64_t> dim, bool, Out y) {
  reduce(host, Formula{}, y, x, dim);
}

template void SumSquared::cpu<isa::FUSECONV_ISA>(CpuHost&, In, std::span<const int64_t>, bool, Out);

}  // namespace fuseconv
