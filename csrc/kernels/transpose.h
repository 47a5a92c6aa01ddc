// Copies tensors on CUDA, also between layouts in which different dims are innermost, such as from x.transpose(1, 2) to
// a contiguous tensor.
#pragma once

#include "core/host.h"
#include "core/layout.h"

namespace fuseconv::cuda {

// Copies x to y, which has the same sizes and dtype. If different dims are innermost in x and y, the copy goes through
// shared memory, so that both are accessed along their innermost dim.
void copy(CudaHost& host, In x, Out y);

// Returns a copy of x in scratch memory, in the layout of `spec`, which has the sizes and the dtype of x. The copy
// refers to the sizes and strides of `spec`.
In copied(CudaHost& host, In x, const Spec& spec);

// Returns whether different dims are innermost in x and y, which have the same sizes, and both dims are long enough for
// a copy through shared memory.
bool is_transposed(In x, In y);

// Returns x in the layout of y. If different dims are innermost in x and y, copies x into a scratch buffer, because a
// kernel that reads x in the order of y would need a memory transaction for each element. Returns x itself if no copy
// is needed, if the sizes of x and y differ, if y is not dense, or if y has few elements.
In in_layout_of(CudaHost& host, In x, In y);

}  // namespace fuseconv::cuda
