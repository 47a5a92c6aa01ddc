// Declares one interface for all CUDA backends that compute a linear layer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/linear_backend.h"
#include "gemm/problem.h"

namespace fuseconv::linear {

// A backend and one of its variants. The meaning of `variant` depends on the backend: the rank of a cuBLAS algorithm in
// cuBLAS's list of proposals, the encoded launch configuration of sm90, or the index of a tile size of sm80 or tf32x3.
struct Choice {
  Backend backend;
  int32_t variant;
};

// Returns the reason for which a backend does not support a problem, or an empty string if the backend supports it.
std::string refuses(Backend backend, const Problem& problem);

// Returns the choices worth timing for a problem, restricted to one backend if `only` specifies a backend. Returns an
// empty list if no backend supports the problem.
std::vector<Choice> candidates(const Problem& problem, std::optional<Backend> only);

// Returns the first candidate, which is used if no candidate was timed, or std::nullopt if there is none. Asks cuBLAS
// for algorithms, which takes over 100 microseconds at a new size, only if no kernel of this library comes before them.
std::optional<Choice> untimed_choice(const Problem& problem, std::optional<Backend> only);

// Returns whether a convolution that was not timed is computed by this library's kernel. cuDNN creates an engine for
// each new size, which takes milliseconds. Returns false if the kernel would waste more than three quarters of its
// Tensor Core work, because its tiles have 64 channels.
bool needs_no_engine(const Problem& problem);

// Returns the size in bytes of the scratch buffer in which a choice stores the product [m, 2n] of a gated layer, or 0
// for a choice that needs no scratch buffer.
size_t scratch_bytes(const Problem& problem, Choice choice);

// Returns the size in bytes of the workspace that a choice needs, at most problem.workspace_bytes, or 0.
size_t workspace_bytes(const Problem& problem, Choice choice);

// Enqueues the work on the problem's stream. May be called during stream capture. Throws std::runtime_error if the
// choice does not support the problem, or if CUDA or cuBLAS fails.
void run(const Problem& problem, Choice choice);

std::string to_string(Choice choice);

// Returns the name under which a choice is stored as a tactic, which is a measured kernel choice for one problem size.
// The name denotes the same choice for problems of every size: a cuBLAS algorithm is named by its configuration,
// because its rank depends on the size.
std::string name_of(const Problem& problem, Choice choice);

// Returns the choice with the given name, or std::nullopt if no choice with this name can compute the problem.
std::optional<Choice> named(const Problem& problem, const std::string& name);

}  // namespace fuseconv::linear
