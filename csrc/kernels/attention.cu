#include "kernels/attention.h"

#include "kernels/attention_operands.h"
#include "kernels/attention_products.h"

namespace fuseconv::cuda {
namespace {

// Returns whether there are so few keys that most of a tile of the kernel for Hopper would be empty: as FEW in
// fuseconv/rulebook/attention_functions.py.
bool has_few_keys(const AttentionProblem& p) {
  const int64_t keys = p.k.sizes[p.k.rank - 2], width = p.q.sizes[p.q.rank - 1];
  return keys <= 64 || (keys <= 144 && width <= 32);
}

bool in_one_kernel(CudaHost& host, const AttentionProblem& problem) {
  return has_few_keys(problem) ? short_attention(host, problem) || attention_sm90(host, problem)
                               : attention_sm90(host, problem) || short_attention(host, problem);
}

// Copies the queries, keys and values whose rows begin anywhere, such as parts of wider rows, and tries again: the
// copies take less time than attention by products. Heads of other widths have no kernel.
bool with_aligned_rows(CudaHost& host, AttentionProblem problem) {
  Spec specs[3];
  int copies = 0;
  for (In* const x : {&problem.q, &problem.k, &problem.v}) {
    const int64_t width = x->sizes[x->rank - 1];
    if (size_of(x->dtype) != 2 || width % 8 != 0 || width > 128) {
      return false;
    }
    if (!has_vectors(*x)) {
      specs[copies] = contiguous_like(*x);
      const Out copy = in_scratch(host, specs[copies++]);
      cuda::pointwise(host, Identity{}, copy, *x);
      *x = copy;
    }
  }
  return copies > 0 && in_one_kernel(host, problem);
}

}  // namespace

void attention(CudaHost& host, const AttentionProblem& problem) {
  if (!in_one_kernel(host, problem) && !with_aligned_rows(host, problem)) {
    attention_by_products(host, problem);
  }
}

}  // namespace fuseconv::cuda
