// A tensor [..., columns] as a matrix whose rows are dense and have one stride between them. `data` is the tensor's own
// memory, or a copy in a scratch buffer if the tensor has another layout.
#pragma once

#include "core/host.h"
#include "core/layout.h"

namespace fuseconv::cuda {

struct DenseRows {
  const void* data;
  int64_t stride;
};

// Returns whether x already has this layout. If it has, sets *stride to the number of elements from one row to the
// next.
inline bool is_dense_rows(In x, int64_t* stride) {
  const int64_t columns = x.sizes[x.rank - 1];
  const Loop loop = row_loop(&x, 1);
  const int64_t rows = loop.count();
  *stride = rows == 1 ? columns : loop.strides[0][0];
  return loop.rank == 1 && (columns == 1 || x.strides[x.rank - 1] == 1) && *stride >= columns;
}

// The rows of a copy start at multiples of so many elements.
DenseRows dense_rows(CudaHost& host, In x, int64_t multiple = 1);

// Copies x even if it has this layout.
DenseRows copied_rows(CudaHost& host, In x, int64_t multiple);

// Views a tensor [N, C, ...] as [N, ..., C].
struct PixelRows {
  int64_t sizes[kMaxRank], strides[kMaxRank];

  explicit PixelRows(In tensor) {
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const int from = axis == 0 ? 0 : axis + 1 < tensor.rank ? axis + 1 : 1;
      sizes[axis] = tensor.sizes[from];
      strides[axis] = tensor.strides[from];
    }
  }
  In of(In tensor) const { return {tensor.data, tensor.dtype, tensor.rank, sizes, strides}; }
};

}  // namespace fuseconv::cuda
