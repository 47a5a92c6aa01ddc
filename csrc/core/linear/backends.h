// The backends of a linear layer on CUDA, behind one interface.
#pragma once

#include <string>
#include <vector>

#include "core/linear/problem.h"

namespace fuseconv::linear {

// cublaslt: one call with its epilogue. sm90: our fused kernel. cublas: cublaslt's GEMM, then one pass, in place or,
// when gated, from the problem's scratch to y.
enum class Backend : int32_t { cublaslt, sm90, cublas };

// A backend and which of its variants: cuBLAS's algorithm by rank, or a configuration of sm90 by its code.
struct Choice {
  Backend backend;
  int32_t variant;
};

// Why a backend cannot do a problem, or an empty string.
std::string refuses(Backend backend, const Problem& problem);

// Whether a choice made for another call fits this one.
bool takes(const Problem& problem, Choice choice);

// What is worth timing for a problem; the first is what to use untimed. Empty only when every backend refuses.
std::vector<Choice> candidates(const Problem& problem);

// The bytes of scratch that a choice needs: its product of a gated layer, [m, 2n]. 0 for most.
size_t scratch_bytes(const Problem& problem, Choice choice);

// Queues the work on the problem's stream; allowed inside a stream capture. Throws std::runtime_error.
void run(const Problem& problem, Choice choice);

std::string to_string(Choice choice);

}  // namespace fuseconv::linear
