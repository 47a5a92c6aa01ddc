#include "kernels/norm.h"

#include "core/cuda.cuh"
#include "kernels/transpose.h"

namespace fuseconv::cuda {

// Each dtype has its own translation unit: norm_f32.cu and so on.
template <class T>
void run_norm(CudaHost& host, const Norm& norm);

namespace {

// Returns the norm with x and the residual in the same layout. If only one of them has the layout of y, copies the
// other, so that both can be read in memory order.
Norm in_one_layout(CudaHost& host, const Norm& norm) {
  Norm result = norm;
  const bool sum_too = !norm.sum || !is_transposed(*norm.sum, norm.y);
  if (norm.residual && sum_too && is_transposed(norm.x, norm.y) != is_transposed(*norm.residual, norm.y)) {
    result.x = in_layout_of(host, norm.x, norm.y);
    result.residual = in_layout_of(host, *norm.residual, norm.y);
  }
  return result;
}

}  // namespace

void norm(CudaHost& host, const Norm& norm) {
  if (element_count(norm.x) > 0) {
    const Norm laid_out = in_one_layout(host, norm);
    dispatch(norm.x.dtype, [&]<class T>(T) { run_norm<T>(host, laid_out); });
  }
}

}  // namespace fuseconv::cuda
