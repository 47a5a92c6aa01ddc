#include "kernels/philox.cuh"
#include "kernels/pointwise.cuh"
#include "ops/gelu_dropout.h"

namespace fuseconv {

void GeluDropout::cuda(CudaHost& host, In x, InI64 seed, double p, Out y) {
  cuda::pointwise(host, Formula{}, y, x, cuda::KeepFactorOperand{KeepFactors(seed.data, p)});
}

}  // namespace fuseconv
