#include "kernels/reduce.cuh"
#include "ops/mean_abs.h"

namespace fuseconv {

void MeanAbs::cuda(CudaHost& host, In x, std::span<const int64_t> dim, bool, Out y) {
  cuda::reduce(host, Formula{}, y, x, dim);
}

}  // namespace fuseconv
