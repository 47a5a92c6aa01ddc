// Backend `cublaslt`: one cublasLtMatmul call with one of cuBLAS's epilogues and one of its algorithms.
#pragma once

#include <optional>
#include <string>

#include "gemm/problem.h"

namespace fuseconv::linear::cublaslt {

// Returns the reason for which one call cannot compute the problem, or an empty string if it can. cuBLAS 13 has the
// epilogues bias, relu and gelu_tanh, and adds a residual only if no activation precedes it.
std::string refuses(const Problem& problem);

// Returns the number of algorithms that cuBLAS proposes for this problem, at most 16. They are ranked, best guess
// first.
int algorithms(const Problem& problem);

// Returns whether cuBLAS has an algorithm for this problem. Asks cuBLAS for its proposals only if `named` has not yet
// found an algorithm for the problem.
bool runs(const Problem& problem);

// Returns the rank of the algorithm of that name, or std::nullopt if cuBLAS has no such algorithm or it cannot compute
// this problem. Does not ask cuBLAS for its proposals, which takes as long as many kernels.
std::optional<int> named(const Problem& problem, const std::string& name);

// Runs the algorithm of that rank on the problem's stream and multiplies the product by `scale`. Throws
// std::runtime_error if the problem is not supported or cuBLAS fails.
void run(const Problem& problem, int algorithm, double scale = 1.0);

// Returns whether an algorithm propagates NaN through relu. cuBLAS does not guarantee this, and some versions returned
// 0. Runs the algorithm once with the scale NaN, overwrites y, and waits for the result.
bool keeps_nan(const Problem& problem, int algorithm);

// Returns the configuration of the algorithm of that rank: id, tile, stages, split-K, reduction, swizzle, option, inner
// shape and cluster shape, as cuBLAS numbers them.
std::string name_of(const Problem& problem, int algorithm);

// Returns the version of the loaded library, for which algorithms and timings are valid.
size_t version();

}  // namespace fuseconv::linear::cublaslt
