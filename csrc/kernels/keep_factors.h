// Makes the dropout factors of kernels/philox.h an input of a pointwise kernel.
#pragma once

#include "kernels/philox.h"

#if defined(__CUDACC__)
#include "kernels/philox.cuh"
#elif defined(FUSECONV_KERNELS)
#include "core/host.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// A source in the sense of kernels/pointwise.h.
struct KeepFactorSource {
  KeepFactors factors;

  // Computes the factors of n <= N elements, `stride` apart, starting at element `index`.
  template <int64_t N, class A>
  void fill(int64_t index, int64_t stride, A* values, int64_t n) const {
    const uint64_t key = static_cast<uint64_t>(*factors.seed);
    const A kept = static_cast<A>(factors.factor);
    if (stride == 1) {
      alignas(64) A whole[N + 14];
      const int64_t begin = index / 8, end = (index + n + 7) / 8;
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) {
        const PhiloxWords words = philox(begin + i, key);
        A* const values_of_words = whole + 8 * i;
        const auto put = [&](int place, uint32_t word) {
          values_of_words[place] = factors.drops(word, false) ? A(0) : kept;
          values_of_words[place + 1] = factors.drops(word, true) ? A(0) : kept;
        };
        put(0, words.x);
        put(2, words.y);
        put(4, words.z);
        put(6, words.w);
      }
      std::copy_n(whole + index % 8, n, values);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const int64_t element = index + i * stride, place = element % 8 / 2;
        const PhiloxWords words = philox(element / 8, key);
        const uint32_t word = place == 0 ? words.x : place == 1 ? words.y : place == 2 ? words.z : words.w;
        values[i] = factors.drops(word, element % 2 != 0) ? A(0) : kept;
      }
    }
  }
};

inline KeepFactorSource keep_factors(CpuHost&, const KeepFactors& factors) { return {factors}; }

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
#endif
