// Replaces tf32x3.cu in a build that does not include compute capability 9.0.
#include <stdexcept>

#include "gemm/tf32x3.h"

namespace fuseconv::linear::tf32x3 {

std::string refuses(const Problem&) { return "fuseconv was built without it: FUSECONV_CUDA_ARCHS has no 90a"; }
std::vector<int> shapes(const Problem&) { return {}; }
void run(const Problem& p, int) {
  throw std::runtime_error("fuseconv::linear_act: backend tf32x3 refuses: " + refuses(p));
}

}  // namespace fuseconv::linear::tf32x3
