// Attention: y = softmax(scale q k^T + mask) v. A query whose scores are all -inf gets zeros.
//
// In f16 and bf16 on CUDA, if there are few keys and a head is narrow, one kernel computes everything. Otherwise the
// host's GEMM computes both products, and the scores between them are written to memory.
#pragma once

#include <optional>

#include "core/host.h"
#include "core/isa.h"
#include "core/tensor_view.h"

namespace fuseconv {

// All tensors have the same leading dims, any strides, and at least one element in y. q is [..., S, D], k [..., T, D],
// v [..., T, E], mask [..., S, T], and y [..., S, E]. If it is causal, query s sees the keys up to s, there is no mask,
// and S is T.
struct AttentionProblem {
  In q, k, v;
  std::optional<In> mask;
  bool is_causal;
  double scale;
  Out y;
};

inline namespace FUSECONV_ISA {

void attention(CpuHost& host, const AttentionProblem& problem);

}  // namespace FUSECONV_ISA

namespace cuda {

void attention(CudaHost& host, const AttentionProblem& problem);

// Computes attention in one kernel. Returns false, and does nothing, if it has no kernel for the problem.
bool short_attention(CudaHost& host, const AttentionProblem& problem);

}  // namespace cuda
}  // namespace fuseconv
