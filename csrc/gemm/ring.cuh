// The position of a producer or consumer thread in a ring buffer of stages in shared memory.
#pragma once

#include <cstdint>

namespace fuseconv::linear {

// A position in the ring, and the phase parity of the current round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void skip(int steps) {
    parity ^= (stage + steps) / kStages & 1;
    stage = (stage + steps) % kStages;
  }
};

}  // namespace fuseconv::linear
