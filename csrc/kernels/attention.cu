#include "kernels/attention.h"

#include "kernels/attention_products.h"

namespace fuseconv::cuda {

void attention(CudaHost& host, const AttentionProblem& problem) {
  if (problem.is_causal || !short_attention(host, problem)) {
    attention_by_products(host, problem);
  }
}

}  // namespace fuseconv::cuda
