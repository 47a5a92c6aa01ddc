// Translates a problem into cuBLASLt's descriptors, and queries the algorithms that cuBLASLt proposes for the problem.
#pragma once

#include <cublasLt.h>

#include <optional>
#include <string>
#include <vector>

#include "gemm/problem.h"

namespace fuseconv::linear::cublaslt {

inline constexpr int kProposals = 16;

// cuBLAS is column-major: it computes y^T [n, m] = weight [n, k] x^T [k, m], with the bias along the rows of y^T.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, residual, y;
};

// Throws std::runtime_error, whose message names the call, unless `status` is success.
void check(cublasStatus_t status, const char* call);

template <class T>
void set(cublasLtMatmulDescOpaque_t* operation, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

Descriptors describe(const Problem& problem);

// An algorithm that can compute a problem, and the size in bytes of the workspace that it needs.
struct Proposal {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes;
};

// Returns the algorithms that cuBLASLt proposes, at most kProposals, fastest expected first. Takes as long as several
// kernels.
std::vector<Proposal> propose(cublasLtHandle_t handle, const Problem& problem, Descriptors& descriptors);

// Returns the configuration of an algorithm: id, tile, stages, split-K, reduction, swizzle, option, inner shape and
// cluster shape, as cuBLAS numbers them.
std::string name_of(const cublasLtMatmulAlgo_t& algorithm);

// Returns the algorithm with the given name for the element types of a problem, or std::nullopt if cuBLAS has no such
// algorithm. The result is the same algorithm that `propose` returns under that name for any size. Takes less than a
// microsecond; `propose` takes hundreds.
std::optional<cublasLtMatmulAlgo_t> algorithm_of(cublasLtHandle_t handle, const Problem& problem,
                                                 const std::string& name);

}  // namespace fuseconv::linear::cublaslt
