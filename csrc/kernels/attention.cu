#include "kernels/attention.h"

#include "kernels/attention_products.h"

namespace fuseconv::cuda {
namespace {

// Returns whether there are so few keys that most of a tile of the kernel for Hopper would be empty: as FEW in
// fuseconv/rulebook/attention_functions.py.
bool has_few_keys(const AttentionProblem& p) {
  const int64_t keys = p.k.sizes[p.k.rank - 2], width = p.q.sizes[p.q.rank - 1];
  return keys <= 64 || (keys <= 144 && width <= 32);
}

}  // namespace

void attention(CudaHost& host, const AttentionProblem& problem) {
  const bool is_done = has_few_keys(problem) ? short_attention(host, problem) || attention_sm90(host, problem)
                                             : attention_sm90(host, problem) || short_attention(host, problem);
  if (!is_done) {
    attention_by_products(host, problem);
  }
}

}  // namespace fuseconv::cuda
