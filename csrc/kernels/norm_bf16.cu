#include "kernels/norm.cuh"

namespace fuseconv::cuda {

template void run_norm<__nv_bfloat16>(CudaHost&, const Norm&);

}  // namespace fuseconv::cuda
