// The backends of a linear layer on CUDA, behind one interface.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/linear_backend.h"
#include "gemm/problem.h"

namespace fuseconv::linear {

// A backend and which of its variants: cuBLAS's algorithm by rank, a configuration of sm90 by its code, or a tile
// of sm80.
struct Choice {
  Backend backend;
  int32_t variant;
};

// Why a backend cannot do a problem, or an empty string.
std::string refuses(Backend backend, const Problem& problem);

// Whether a choice made for another call fits this one.
bool takes(const Problem& problem, Choice choice);

// What is worth timing for a problem, of one backend if `only` names one; the first is what to use untimed. Empty when
// no backend takes the problem.
std::vector<Choice> candidates(const Problem& problem, std::optional<Backend> only);

// The bytes of scratch that a choice needs: its product of a gated layer, [m, 2n]. 0 for most.
size_t scratch_bytes(const Problem& problem, Choice choice);

// Queues the work on the problem's stream; allowed inside a stream capture. Throws std::runtime_error.
void run(const Problem& problem, Choice choice);

std::string to_string(Choice choice);

}  // namespace fuseconv::linear
