#include "kernels/dense_rows.h"

#include "kernels/transpose.h"

namespace fuseconv::cuda {

DenseRows dense_rows(CudaHost& host, In x) {
  DenseRows rows{x.data, 0};
  if (!is_dense_rows(x, &rows.stride)) {
    const Spec dense = contiguous_like(x);
    const Out own{host.scratch(element_count(x) * size_of(x.dtype)), x.dtype, x.rank, dense.sizes, dense.strides};
    copy(host, x, own);
    rows = {own.data, x.sizes[x.rank - 1]};
  }
  return rows;
}

}  // namespace fuseconv::cuda
