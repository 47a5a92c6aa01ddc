// Computes random numbers as a pure function of a key and a counter, and dropout factors from these numbers.
//
// The generator is Philox 4x32-7: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011, where seven rounds pass all of TestU01's batteries. It has no state, so every thread and device can compute the
// number of any element, and a backward pass can recompute it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/isa.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

struct PhiloxWords {
  uint32_t x, y, z, w;
};

// Returns the four words at `counter`, whose upper 64 bits are 0, for the key `key`.
FUSECONV_INLINE PhiloxWords philox(uint64_t counter, uint64_t key) {
  PhiloxWords c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 7; ++round) {
    const uint64_t p = uint64_t{0xD2511F53u} * c.x, q = uint64_t{0xCD9E8D57u} * c.z;
    c = {static_cast<uint32_t>(q >> 32) ^ c.y ^ key0, static_cast<uint32_t>(q),
         static_cast<uint32_t>(p >> 32) ^ c.w ^ key1, static_cast<uint32_t>(p)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The dropout factor of an element: 1 / (1 - p), or 0 if the element is dropped. The four words at a counter are eight
// numbers of 16 bits; the lower half of each word comes first. Element i, in row-major order, uses number i % 8 at
// counter i / 8 and is dropped if this number is less than p 2^16, rounded. Generating random numbers is most of the
// kernel's work, and eight numbers of 16 bits cost as much as four numbers of 32 bits.
struct KeepFactors {
  const int64_t* seed;  // in the memory of the tensor, which the host cannot read on CUDA
  uint32_t threshold;
  double factor;

  KeepFactors(const void* seed, double p)
      : seed(static_cast<const int64_t*>(seed)),
        threshold(p == 1 ? 1 << 16 : static_cast<uint32_t>(std::min(p * 0x1p16 + 0.5, 0x1p16 - 1))),
        factor(p == 1 ? 0 : 1 / (1 - p)) {}

  // Returns whether the element that uses the upper or the lower half of a word is dropped.
  FUSECONV_INLINE bool drops(uint32_t word, bool upper) const {
    return (upper ? word >> 16 : word & 0xffffu) < threshold;
  }
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
