// Convolutions by cuDNN with what follows them in the same kernel: relu?(convolution(x, weight) + residual + bias).
#pragma once

#include <optional>

#include "core/host.h"

namespace fuseconv::cudnn {

// [N, C, H, W] or [N, C, D, H, W], all channels last, in f16 or bf16, at addresses divisible by 16.
struct Problem {
  In x, weight;
  std::optional<In> bias, residual;
  ConvolutionParameters parameters;
  bool relu;
  Out y;
};

// Runs a problem on the host's stream. Only engines that cuDNN has compiled in advance are used: one that is compiled
// on its first call takes up to a second for it; and none whose results may differ from call to call. The fastest is
// found by timing on the first call of a problem, if `may_time` and the stream is not being captured; else cuDNN's
// heuristic says which.
//
// Returns false, having done nothing, if the process has no cuDNN 9 or cuDNN has no such engine.
bool run(CudaHost& host, const Problem& problem, bool may_time);

}  // namespace fuseconv::cudnn
