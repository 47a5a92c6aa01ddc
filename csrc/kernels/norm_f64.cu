#include "kernels/norm.cuh"

namespace fuseconv::cuda {

template void run_norm<double>(CudaHost&, const Norm&);

}  // namespace fuseconv::cuda
