#include "kernels/norm.cuh"

namespace fuseconv::cuda {

template void run_norm<__half>(CudaHost&, const Norm&);

}  // namespace fuseconv::cuda
