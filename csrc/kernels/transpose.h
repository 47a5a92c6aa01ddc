// Copies between tensors whose elements are adjacent along different dims, such as x.transpose(1, 2) and a contiguous
// tensor.
#pragma once

#include "core/host.h"
#include "core/layout.h"

namespace fuseconv::cuda {

// Copies x to y, which has the same sizes and dtype. A transposition goes through shared memory.
void copy(CudaHost& host, In x, Out y);

// Returns whether the elements of x are adjacent along another dim than the elements of y, which has the same sizes.
bool is_transposed(In x, In y);

// Returns x, or a copy of x in scratch with the layout of y if the elements of x are adjacent along another dim than
// those of y: reading such an x directly would take a memory transaction for each element. If x is smaller than y,
// returns x itself.
In in_layout_of(CudaHost& host, In x, In y);

}  // namespace fuseconv::cuda
