// Computes a convolution and the operations that follow it in one cuDNN kernel: relu?(convolution(x, weight) + residual
// + bias).
#pragma once

#include <memory>
#include <optional>

#include "core/host.h"
#include "cudnn/refused.h"

namespace fuseconv::cudnn {

// Tensors are [N, C, H, W] or [N, C, D, H, W], all channels last, in f16 or bf16, at addresses divisible by 16.
struct Problem {
  In x, weight;
  std::optional<In> bias, residual;
  ConvolutionParameters parameters;
  bool relu;
  Out y;
};

// Returns the version of the process's cuDNN, or 0 if it has no cuDNN 9.
int64_t version();

// A problem with the engine that computes it.
struct Plan;
struct Call {
  Problem problem;
  std::shared_ptr<Plan> plan;
  void* workspace;
};

// Selects the engine for a problem on the host's stream. Uses only engines that are deterministic and precompiled in
// cuDNN's library: compiling an engine on its first call takes up to a second. On the first call with a problem that
// was not measured, times the engines and selects the fastest if `may_time` is true and the stream is not being
// captured. Otherwise selects the engine that is expected to be fastest from the measured tactics or, without tactics
// and without a ReLU, from cuDNN's heuristic. With a ReLU, only engines that were seen to propagate NaN are used:
// timing tests this. Timing overwrites y.
//
// Returns std::nullopt if the process has no cuDNN 9 or there is no such engine.
std::optional<Call> prepare(CudaHost& host, const Problem& problem, bool may_time);

// Enqueues the work on a stream. Throws Refused if cuDNN refuses; `prepare` then returns std::nullopt for this problem.
void run(const Call& call, void* stream);

}  // namespace fuseconv::cudnn
