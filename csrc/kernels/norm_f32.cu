#include "kernels/norm.cuh"

namespace fuseconv::cuda {

template void run_norm<float>(CudaHost&, const Norm&);

}  // namespace fuseconv::cuda
