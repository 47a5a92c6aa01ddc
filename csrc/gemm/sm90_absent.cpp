// Replaces sm90.cpp in a build that does not include compute capability 9.0.
#include "gemm/sm90.h"

#include <stdexcept>

namespace fuseconv::linear::sm90 {

int encode(const Configuration&) { return 0; }
Configuration decode(int) { return {}; }
std::string to_string(const Configuration&) { return "absent"; }
std::vector<Configuration> configurations(const Problem&) { return {}; }
std::string refuses(const Problem&) { return "fuseconv was built without it: FUSECONV_CUDA_ARCHS has no 90a"; }
void run(const Problem& p, const Configuration&) {
  throw std::runtime_error("fuseconv::linear_act: backend sm90 refuses: " + refuses(p));
}

}  // namespace fuseconv::linear::sm90
