// One interface for all CUDA backends of a linear layer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/linear_backend.h"
#include "gemm/problem.h"

namespace fuseconv::linear {

// A backend and its variant: the rank of a cuBLAS algorithm, the code of an sm90 configuration, or the index of an sm80
// or tf32x3 tile.
struct Choice {
  Backend backend;
  int32_t variant;
};

// Returns why a backend does not support a problem, or an empty string if it does.
std::string refuses(Backend backend, const Problem& problem);

// Returns the choices worth timing for a problem, restricted to one backend if `only` names one. The first choice is
// used if nothing is timed. Empty if no backend supports the problem.
std::vector<Choice> candidates(const Problem& problem, std::optional<Backend> only);

// Returns the bytes of scratch memory that a choice needs for the product [m, 2n] of a gated layer. Most choices need
// 0.
size_t scratch_bytes(const Problem& problem, Choice choice);

// Enqueues the work on the problem's stream. Allowed during stream capture. Throws std::runtime_error.
void run(const Problem& problem, Choice choice);

std::string to_string(Choice choice);

// Returns the name under which a choice is stored as a tactic. The name means the same for every size: a cuBLAS
// algorithm is named by its configuration, not by its rank.
std::string name_of(const Problem& problem, Choice choice);

// Returns the choice of that name, or nothing if it cannot compute the problem.
std::optional<Choice> named(const Problem& problem, const std::string& name);

}  // namespace fuseconv::linear
