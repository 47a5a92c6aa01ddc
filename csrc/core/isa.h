// The CPU instruction sets. Every CPU kernel file is compiled once per instruction set; the macro FUSECONV_ISA names
// the instruction set of a compilation. At run time, the library selects the one that suits the machine's CPU.
//
// Inline definitions in a kernel file must be in the namespace of its instruction set, or be templates over a type from
// that namespace. The linker keeps one copy per name, and a copy compiled for a newer CPU must not run on an older CPU.
#pragma once

#include <string_view>

// Translation units that are compiled only once, such as bindings and shape computations, also include this file.
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

// Returns the function for this machine from a family of kernels, which has one function per instruction set. `family`
// maps an instruction set to a function pointer.
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
