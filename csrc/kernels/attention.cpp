#include "kernels/attention.h"

#include "kernels/attention_products.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

void attention(CpuHost& host, const AttentionProblem& problem) { attention_by_products(host, problem); }

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
