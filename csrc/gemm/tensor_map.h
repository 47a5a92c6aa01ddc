// Creates tensor maps of matrices for TMA on Hopper.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gemm/problem.h"

namespace fuseconv::linear {

// Returns a map of a [rows, columns] matrix with `stride` elements from row to row. Each box contains `box_rows` by
// `box_columns` elements; elements outside the matrix are read as zeros. A row of a box must be 64 or 128 bytes long;
// the swizzle has the same width. Throws std::runtime_error if the driver rejects the map.
CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       int box_columns);

}  // namespace fuseconv::linear
