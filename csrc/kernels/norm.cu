#include "kernels/norm.h"

#include "core/cuda.cuh"

namespace fuseconv::cuda {

// One translation unit each: norm_f32.cu and so on.
template <class T>
void run_norm(CudaHost& host, const Norm& norm);

void norm(CudaHost& host, const Norm& norm) {
  if (element_count(norm.x) > 0) {
    dispatch(norm.x.dtype, [&]<class T>(T) { run_norm<T>(host, norm); });
  }
}

}  // namespace fuseconv::cuda
