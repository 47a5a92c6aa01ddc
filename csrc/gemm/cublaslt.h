// Backend `cublaslt`: one cublasLtMatmul with the epilogue that cuBLAS has, and its own algorithms to choose from.
#pragma once

#include <string>

#include "gemm/problem.h"

namespace fuseconv::linear::cublaslt {

// Why one call cannot do it, or an empty string: cuBLAS 13 has bias, relu and gelu_tanh, and adds a residual only where
// no activation comes before it.
std::string refuses(const Problem& problem);

// How many algorithms cuBLAS proposes for this problem, best guess first. Never more than 16.
int algorithms(const Problem& problem);

// Runs the algorithm of that rank on the problem's stream, the product multiplied by `scale`. Throws std::runtime_error
// when refused or when cuBLAS fails.
void run(const Problem& problem, int algorithm, double scale = 1.0);

// Whether NaN comes out of an algorithm that NaN goes into: cuBLAS promises nothing of its relu, and some versions gave
// 0. Runs it once, with a NaN for a factor, over y, and waits.
bool keeps_nan(const Problem& problem, int algorithm);

// The version of the library that is loaded: algorithms and timings belong to it.
size_t version();

}  // namespace fuseconv::linear::cublaslt
