#include "core/isa.h"

#include <cstdlib>

#include "core/check.h"

namespace fuseconv::isa {
namespace {

bool supported(std::string_view name) {
#if defined(__x86_64__) && !defined(FUSECONV_BASELINE_ONLY)
  __builtin_cpu_init();
  // The features of the psABI levels for which the kernels may be compiled.
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
                  __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("movbe");
  if (name == x86_64_v3::name) {
    return v3;
  }
  if (name == x86_64_v4::name) {
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return name == baseline::name;
}

std::string_view choose() {
  if (const char* asked = std::getenv("FUSECONV_ISA"); asked != nullptr && *asked != '\0') {
    check(supported(asked), "FUSECONV_ISA=", asked, " is not an instruction set of this processor; use one of ",
          baseline::name, ", ", x86_64_v3::name, ", ", x86_64_v4::name, ", or unset it");
    return asked;
  }
  for (std::string_view name : {x86_64_v4::name, x86_64_v3::name}) {
    if (supported(name)) {
      return name;
    }
  }
  return baseline::name;
}

}  // namespace

std::string_view selected() {
  static const std::string_view name = choose();
  return name;
}

}  // namespace fuseconv::isa
