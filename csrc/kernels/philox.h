// Random numbers that are a function of a key and a counter, and the dropout factors made of them.
//
// Philox 4x32-7: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, which finds
// that seven rounds pass all of TestU01's batteries. No state is kept, so every thread and every device can make any
// element's number, and a backward pass can make it again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/isa.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

struct PhiloxWords {
  uint32_t x, y, z, w;
};

// The four words at `counter`, whose upper 64 bits are 0, with the key `key`.
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

// What dropout with probability p multiplies an element by: 1 / (1 - p), or 0 if it is dropped. Element i, in row-major
// order, takes the 16 bits i % 8 of the words at the counter i / 8, the lower ones of a word first, and is dropped
// where they are below p 2^16, rounded: random numbers are most of what the kernel computes, and eight of 16 bits cost
// what four of 32 do.
struct KeepFactors {
  const int64_t* seed;  // where the tensor lies: on CUDA the host cannot read it
  uint32_t threshold;
  double factor;

  KeepFactors(const void* seed, double p)
      : seed(static_cast<const int64_t*>(seed)),
        threshold(p == 1 ? 1 << 16 : static_cast<uint32_t>(std::min(p * 0x1p16 + 0.5, 0x1p16 - 1))),
        factor(p == 1 ? 0 : 1 / (1 - p)) {}

  // Whether an element is dropped that takes the upper or the lower half of a word.
  FUSECONV_INLINE bool drops(uint32_t word, bool upper) const {
    return (upper ? word >> 16 : word & 0xffffu) < threshold;
  }
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
