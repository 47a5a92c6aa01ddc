// Backend `cublaslt`: computes a linear layer by one cublasLtMatmul call, with one of cuBLAS's epilogues and
// algorithms.
#pragma once

#include <optional>
#include <string>

#include "gemm/problem.h"

namespace fuseconv::linear::cublaslt {

// Returns the reason for which one call cannot compute the problem, or an empty string if one call can compute it.
// cuBLAS 13 provides the epilogues bias, relu and gelu_tanh, and can add a residual only if no activation precedes the
// addition.
std::string refuses(const Problem& problem);

// Returns the number of algorithms that cuBLAS proposes for this problem, at most 16. cuBLAS ranks its proposals by
// expected speed, fastest first.
int algorithms(const Problem& problem);

// Returns whether cuBLAS has an algorithm for this problem. Asks cuBLAS for its proposals only if `named` has not yet
// found an algorithm for the problem.
bool runs(const Problem& problem);

// Returns the rank of the algorithm with the given name, or std::nullopt if cuBLAS has no such algorithm or the
// algorithm cannot compute this problem. Does not ask cuBLAS for its proposals, which would take as long as many
// kernels.
std::optional<int> named(const Problem& problem, const std::string& name);

// Returns the size in bytes of the workspace that the algorithm with rank `algorithm` needs. Throws std::runtime_error
// if there is no such algorithm.
size_t workspace_bytes(const Problem& problem, int algorithm);

// Runs the algorithm with rank `algorithm` on the problem's stream and multiplies the product by `scale`. Throws
// std::runtime_error if the problem is not supported or cuBLAS fails.
void run(const Problem& problem, int algorithm, double scale = 1.0);

// Returns whether an algorithm propagates NaN through relu. cuBLAS does not guarantee this, and some versions returned
// 0. Runs the algorithm once with a scale of NaN, overwrites y, and waits for the result.
bool keeps_nan(const Problem& problem, int algorithm);

// Returns the configuration of the algorithm with rank `algorithm`: id, tile, stages, split-K, reduction, swizzle,
// option, inner shape and cluster shape, as cuBLAS numbers them.
std::string name_of(const Problem& problem, int algorithm);

// Returns the version of the loaded cuBLASLt library. Names of algorithms and timings are valid only for this version.
size_t version();

}  // namespace fuseconv::linear::cublaslt
