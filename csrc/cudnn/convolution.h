// Computes a convolution and the operations that follow it in one cuDNN kernel: relu?(convolution(x, weight) + residual
// + bias).
#pragma once

#include <optional>

#include "core/host.h"

namespace fuseconv::cudnn {

// Tensors are [N, C, H, W] or [N, C, D, H, W], all channels last, in f16 or bf16, at addresses divisible by 16.
struct Problem {
  In x, weight;
  std::optional<In> bias, residual;
  ConvolutionParameters parameters;
  bool relu;
  Out y;
};

// Runs a problem on the host's stream. Uses only engines that cuDNN has compiled in advance, because an engine that is
// compiled on its first call takes up to a second for that, and only engines whose results do not differ from call to
// call. If `may_time` and the stream is not being captured, times the engines on the first call of a problem and
// selects the fastest; otherwise cuDNN's heuristic selects one.
//
// Returns false, without any effect, if the process has no cuDNN 9 or cuDNN has no such engine.
bool run(CudaHost& host, const Problem& problem, bool may_time);

}  // namespace fuseconv::cudnn
