// Backend `cublaslt` in a build without cublasLt.h.
#include <stdexcept>

#include "gemm/cublaslt.h"

namespace fuseconv::linear::cublaslt {

std::string refuses(const Problem&) { return "this build has no cuBLASLt; build where cublasLt.h is found"; }

int algorithms(const Problem&) { return 0; }

bool runs(const Problem&) { return false; }

std::optional<int> named(const Problem&, const std::string&) { return std::nullopt; }

void run(const Problem& p, int, double) { throw std::runtime_error("fuseconv::linear_act: " + refuses(p)); }

bool keeps_nan(const Problem& p, int) { throw std::runtime_error("fuseconv::linear_act: " + refuses(p)); }

std::string name_of(const Problem&, int) { return ""; }

size_t version() { return 0; }

}  // namespace fuseconv::linear::cublaslt
