// Copies between tensors whose elements are adjacent along different dims, such as x.transpose(1, 2) and a contiguous
// tensor.
#pragma once

#include "core/host.h"
#include "core/layout.h"

namespace fuseconv::cuda {

// y = x, of the same sizes and dtype. A transposition goes through shared memory.
void copy(CudaHost& host, In x, Out y);

// Whether x is adjacent along another dim than y, which has its sizes.
bool is_transposed(In x, In y);

// x, or, if its elements are adjacent along another dim than those of y, a copy in scratch with the layout of y:
// reading x as it is would take a memory transaction for each element. x may be smaller than y, and is then returned.
In in_layout_of(CudaHost& host, In x, In y);

}  // namespace fuseconv::cuda
