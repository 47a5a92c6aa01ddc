#include "ops/attention_score.h"

namespace fuseconv {

void AttentionScore::cuda(CudaHost& host, In q, In k, std::optional<In> mask, double scale, Out y) {
  run(host, q, k, mask, scale, y, [&](const Softmax& rows) { cuda::softmax(host, rows); });
}

}  // namespace fuseconv
