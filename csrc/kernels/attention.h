// Attention: y = softmax(scale q k^T + mask) v, where causal attention hides from each query the keys after it. A query
// whose scores are all -inf gets zeros.
//
// In f16 and bf16 on CUDA, if there are few keys, a head is narrow and nothing is causal, one kernel computes
// everything. Otherwise the host's GEMM computes both products, and the scores between them are written to memory.
#pragma once

#include <optional>

#include "core/host.h"
#include "core/isa.h"
#include "core/tensor_view.h"

namespace fuseconv {

// All tensors have the same leading dims, any strides, and at least one element in y. q is [..., S, D], k [..., T, D],
// v [..., T, E], mask [..., S, T], and y [..., S, E]. Causal attention has no mask, and as many queries as keys.
struct AttentionProblem {
  In q, k, v;
  std::optional<In> mask;
  double scale;
  Out y;
  bool is_causal = false;
};

inline namespace FUSECONV_ISA {

void attention(CpuHost& host, const AttentionProblem& problem);

}  // namespace FUSECONV_ISA

namespace cuda {

void attention(CudaHost& host, const AttentionProblem& problem);

// Computes attention that is not causal in one kernel. Returns false, and does nothing, if it has no kernel for the
// problem.
bool short_attention(CudaHost& host, const AttentionProblem& problem);

}  // namespace cuda
}  // namespace fuseconv
