#include "ops/attention_score.h"

namespace fuseconv {

template <class Isa>
void AttentionScore::cpu(CpuHost& host, In q, In k, std::optional<In> mask, double scale, Out y) {
  run(host, q, k, mask, scale, y, [&](const Softmax& rows) { softmax(host, rows); });
}

template void AttentionScore::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, double, Out);

}  // namespace fuseconv
