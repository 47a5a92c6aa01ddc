// What the kernels of attention on CUDA ask of their operands, and the loops over matrices.
#pragma once

#include <optional>

#include "core/cuda.cuh"
#include "core/layout.h"
#include "kernels/attention.h"

namespace fuseconv::cuda {

// Returns a tensor of matrices without its last two dims.
inline In leading(In x) { return {x.data, x.dtype, x.rank - 2, x.sizes, x.strides}; }

// Returns whether all rows of a tensor are dense and begin at multiples of 16 bytes, in f16 and bf16.
inline bool has_vectors(In x) {
  bool has = is_aligned(x.data) && x.strides[x.rank - 1] == 1 && x.sizes[x.rank - 1] % 8 == 0;
  for (int axis = 0; axis + 1 < x.rank; ++axis) {
    has &= x.sizes[axis] == 1 || x.strides[axis] % 8 == 0;
  }
  return has;
}

// Returns whether the kernels support a problem: f16 and bf16 with keys, dense rows at multiples of 16 bytes, and,
// without a mask, a positive scale, because then the largest score is the largest product. In f32, the scale times
// log2(e) must be neither 0 nor infinite.
inline bool is_supported(const AttentionProblem& p) {
  return (p.mask || (p.scale > 1e-37 && p.scale < 1e37)) && (p.y.dtype == Dtype::f16 || p.y.dtype == Dtype::bf16) &&
         p.k.sizes[p.k.rank - 2] > 0 && p.y.sizes[p.y.rank - 2] < (int64_t{1} << 24) && has_vectors(p.q) &&
         has_vectors(p.k) && has_vectors(p.v) && has_vectors(p.y);
}

// Returns the loop over the matrices of a problem, with the operands y, q, k, v.
inline Loop matrices_of(const AttentionProblem& p) {
  const In y = leading(p.y);
  return element_loop(Out{p.y.data, y.dtype, y.rank, y.sizes, y.strides}, {leading(p.q), leading(p.k), leading(p.v)});
}

// Returns the loop over the same matrices, with the operands y and the mask. Without a mask, y stands for it.
inline Loop masks_of(const AttentionProblem& p) {
  const In y = leading(p.y);
  return element_loop(Out{p.y.data, y.dtype, y.rank, y.sizes, y.strides}, {p.mask ? leading(*p.mask) : y});
}

}  // namespace fuseconv::cuda
