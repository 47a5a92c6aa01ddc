// A problem in the terms of cuBLASLt: its descriptors, and the algorithms that are proposed for it.
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

// Throws std::runtime_error that names the call if it failed.
void check(cublasStatus_t status, const char* call);

template <class T>
void set(cublasLtMatmulDescOpaque_t* operation, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

Descriptors describe(const Problem& problem);

// At most kProposals algorithms, best guess first. Takes as long as several kernels.
std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, const Problem& problem, Descriptors& descriptors);

// The configuration of an algorithm: id, tile, stages, split-K, reduction, swizzle, option, inner shape and cluster
// shape, as cuBLAS numbers them.
std::string name_of(const cublasLtMatmulAlgo_t& algorithm);

// The algorithm of that name for the elements of a problem, the same that cuBLAS proposes under it, whatever the sizes.
// None if cuBLAS has no such algorithm. Takes less than a microsecond; `propose` takes hundreds.
std::optional<cublasLtMatmulAlgo_t> algorithm_of(cublasLtHandle_t handle, const Problem& problem,
                                                 const std::string& name);

}  // namespace fuseconv::linear::cublaslt
