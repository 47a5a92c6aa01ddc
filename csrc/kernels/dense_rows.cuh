// A tensor [..., columns] as a matrix of rows that are dense in memory, one stride apart: itself, or a copy in scratch.
#pragma once

#include "core/activation.h"
#include "kernels/pointwise.cuh"

namespace fuseconv::cuda {

struct DenseRows {
  const void* data;
  int64_t stride;
};

// Whether x is such a matrix; then also its stride.
inline bool is_dense_rows(In x, int64_t* stride) {
  const int64_t columns = x.sizes[x.rank - 1];
  const Loop loop = row_loop(&x, 1);
  const int64_t rows = loop.count();
  *stride = rows == 1 ? columns : loop.strides[0][0];
  return loop.rank == 1 && (columns == 1 || x.strides[x.rank - 1] == 1) && *stride >= columns;
}

inline DenseRows dense_rows(CudaHost& host, In x) {
  DenseRows rows{x.data, 0};
  if (!is_dense_rows(x, &rows.stride)) {
    Spec dense = contiguous_like(x);
    Out copy{host.scratch(element_count(x) * size_of(x.dtype)), x.dtype, x.rank, dense.sizes, dense.strides};
    pointwise(host, Identity{}, copy, x);
    rows = {copy.data, x.sizes[x.rank - 1]};
  }
  return rows;
}

}  // namespace fuseconv::cuda
