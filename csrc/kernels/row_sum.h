// Computes several sums over a row at once; each term is computed from one value of the row. Compiled once per
// instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/isa.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The bytes of the registers. Of wider vectors, a compiler keeps parts in memory.
#if defined(__AVX512F__)
inline constexpr int kRegister = 64;
#elif defined(__AVX__)
inline constexpr int kRegister = 32;
#else
inline constexpr int kRegister = 16;
#endif

// Returns the sum of the lanes of a vector, of which there are a power of two.
template <class A, class Vector>
A sum_lanes(const Vector& vector) {
  if constexpr (sizeof(Vector) == 2 * sizeof(A)) {
    return vector[0] + vector[1];
  } else {
    typedef A Half __attribute__((vector_size(sizeof(Vector) / 2)));
    Half halves[2];
    std::memcpy(halves, &vector, sizeof halves);
    return sum_lanes<A>(halves[0] + halves[1]);
  }
}

// Returns the sum of Count vectors, a power of two, that are `Step` apart. A recursion, not a loop, so that they stay
// in registers.
template <int Count, int Step, class Vector>
FUSECONV_INLINE Vector sum_vectors(const Vector* vectors) {
  if constexpr (Count == 1) {
    return *vectors;
  } else {
    return sum_vectors<Count / 2, 2 * Step>(vectors) + sum_vectors<Count / 2, 2 * Step>(vectors + Step);
  }
}

// Calls add(chain, i) for vectors of `Lanes` elements from element i on: for `Chains` of them, if as many are left
// before `size`, then for half as many, and so on. Returns the first element that is left.
template <int Chains, int Lanes, class Add>
FUSECONV_INLINE int64_t add_rest(int64_t i, int64_t size, const Add& add) {
  if constexpr (Chains == 0) {
    return i;
  } else {
    if (i + Chains * Lanes <= size) {
      for (int chain = 0; chain < Chains; ++chain, i += Lanes) {
        add(chain, i);
      }
    }
    return add_rest<Chains / 2, Lanes>(i, size, add);
  }
}

// totals[k] = sum over i of terms(s[i])[k]. `terms(x, t)` sets t[0] .. t[Sums - 1] from x. It is called with scalars
// and with vectors (GNU vector extensions) of A.
//
// Lanes and chains make the additions independent of each other. A compiler may not do this by itself, because it
// changes the order of the additions. Their number does not depend on the registers, so the sums do so only slightly.
// At most a few hundred values are added to one partial sum in type A; the totals are in f64.
template <int Sums, class A, class Terms>
void sum_row(const A* s, int64_t n, const Terms& terms, double* totals) {
  typedef A Vector __attribute__((vector_size(kRegister)));
  constexpr int kLanes = kRegister / sizeof(A);
  constexpr int kChains = 256 / kRegister / Sums;
  constexpr int64_t kStep = kLanes * kChains;
  constexpr int64_t kTile = 16 * kStep;
  std::fill_n(totals, Sums, 0.0);
  for (; n > 0; s += kTile, n -= kTile) {
    const int64_t size = std::min(n, kTile);
    Vector chains[Sums][kChains] = {};
    Vector x, t[Sums];
    const auto add = [&](int chain, int64_t i) __attribute__((always_inline)) {
      std::memcpy(&x, s + i, sizeof x);
      terms(x, t);
      for (int k = 0; k < Sums; ++k) {
        chains[k][chain] += t[k];
      }
    };
    int64_t i = 0;
    for (; i + kStep <= size; i += kStep) {
      for (int chain = 0; chain < kChains; ++chain) {
        add(chain, i + chain * kLanes);
      }
    }
    i = add_rest<kChains / 2, kLanes>(i, size, add);
    A rest[Sums] = {};
    for (; i < size; ++i) {
      A scalars[Sums];
      terms(s[i], scalars);
      for (int k = 0; k < Sums; ++k) {
        rest[k] += scalars[k];
      }
    }
    for (int k = 0; k < Sums; ++k) {
      totals[k] += sum_lanes<A>(sum_vectors<kChains, 1>(chains[k])) + rest[k];
    }
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
