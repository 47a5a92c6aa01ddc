// The CUDA backends of a linear layer behind one interface.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/linear_backend.h"
#include "gemm/problem.h"

namespace fuseconv::linear {

// A backend and its variant: the rank of a cuBLAS algorithm, the code of an sm90 configuration, or an sm80 tile.
struct Choice {
  Backend backend;
  int32_t variant;
};

// Returns why a backend does not support a problem. Empty if it does.
std::string refuses(Backend backend, const Problem& problem);

// The choices worth timing for a problem, of one backend if `only` names one. The first is used without timing. Empty
// if no backend supports the problem.
std::vector<Choice> candidates(const Problem& problem, std::optional<Backend> only);

// The bytes of scratch memory that a choice needs, for the product [m, 2n] of a gated layer. 0 for most.
size_t scratch_bytes(const Problem& problem, Choice choice);

// Enqueues the work on the problem's stream. Allowed during stream capture. Throws std::runtime_error.
void run(const Problem& problem, Choice choice);

std::string to_string(Choice choice);

// The name of a choice among the tactics of a problem. It means the same for every size: an algorithm of cuBLAS is
// named by its configuration, not by its rank.
std::string name_of(const Problem& problem, Choice choice);

// The choice of that name. None if the problem cannot be computed by it.
std::optional<Choice> named(const Problem& problem, const std::string& name);

}  // namespace fuseconv::linear
