// Instruction sets. Every kernel file is compiled once per instruction set, which FUSECONV_ISA names. When the library
// is loaded, it selects one instruction set for the machine's CPU.
//
// Inline definitions in a kernel file must be in the namespace of its instruction set, or be templates over a type from
// that namespace. The linker keeps one copy per name, and a copy compiled for a newer CPU must not run on an older CPU.
#pragma once

#include <string_view>

// Translation units without an instruction set also include this file: bindings and shape computations.
#ifndef FUSECONV_ISA
#define FUSECONV_ISA baseline
#endif

#if defined(__CUDACC__)
#define FUSECONV_INLINE __host__ __device__ __forceinline__
#else
#define FUSECONV_INLINE inline __attribute__((always_inline))
#endif

namespace fuseconv::isa {

struct baseline {
  static constexpr std::string_view name = "baseline";
};
struct x86_64_v3 {
  static constexpr std::string_view name = "x86-64-v3";
};
struct x86_64_v4 {
  static constexpr std::string_view name = "x86-64-v4";
};

// Returns the best instruction set of this CPU, or the one named by the environment variable FUSECONV_ISA. Throws if
// the CPU does not support it.
std::string_view selected();

// Selects this machine's function from a family of kernels, one per instruction set. `family` maps an instruction set
// to a function pointer.
template <class Family>
auto select(Family family) {
#if defined(__x86_64__) && !defined(FUSECONV_BASELINE_ONLY)
  if (selected() == x86_64_v4::name) {
    return family(x86_64_v4{});
  }
  if (selected() == x86_64_v3::name) {
    return family(x86_64_v3{});
  }
#endif
  return family(baseline{});
}

}  // namespace fuseconv::isa
