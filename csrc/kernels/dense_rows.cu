#include "kernels/dense_rows.h"

#include "kernels/transpose.h"

namespace fuseconv::cuda {

DenseRows dense_rows(CudaHost& host, In x, int64_t multiple) {
  DenseRows rows{x.data, 0};
  return is_dense_rows(x, &rows.stride) ? rows : copied_rows(host, x, multiple);
}

DenseRows copied_rows(CudaHost& host, In x, int64_t multiple) {
  const int64_t columns = x.sizes[x.rank - 1], stride = (columns + multiple - 1) / multiple * multiple;
  Spec padded = contiguous_like(x);
  padded.sizes[x.rank - 1] = stride;
  padded = contiguous_like(padded);
  const Out own{host.scratch(element_count(padded) * size_of(x.dtype)), x.dtype, x.rank, x.sizes, padded.strides};
  copy(host, x, own);
  return {own.data, stride};
}

}  // namespace fuseconv::cuda
