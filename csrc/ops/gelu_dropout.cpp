#include "ops/gelu_dropout.h"

#include <algorithm>

#include "kernels/philox.h"
#include "kernels/pointwise.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

// The dropout factors as a source of kernels/pointwise.h.
struct KeepFactorSource {
  KeepFactors factors;

  // Fills in the factors of n <= N elements, `stride` apart, from element `index` on.
  template <int64_t N, class A>
  void fill(int64_t index, int64_t stride, A* values, int64_t n) const {
    const uint64_t key = static_cast<uint64_t>(*factors.seed);
    const A kept = static_cast<A>(factors.factor);
    const uint32_t limit = factors.threshold;
    if (stride == 1) {
      alignas(64) A whole[N + 6];
      const int64_t begin = index / 4, end = (index + n + 3) / 4;
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) {
        const PhiloxWords words = philox(begin + i, key);
        whole[4 * i] = words.x < limit ? A(0) : kept;
        whole[4 * i + 1] = words.y < limit ? A(0) : kept;
        whole[4 * i + 2] = words.z < limit ? A(0) : kept;
        whole[4 * i + 3] = words.w < limit ? A(0) : kept;
      }
      std::copy_n(whole + index % 4, n, values);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const int64_t element = index + i * stride, place = element % 4;
        const PhiloxWords words = philox(element / 4, key);
        const uint32_t word = place == 0 ? words.x : place == 1 ? words.y : place == 2 ? words.z : words.w;
        values[i] = word < limit ? A(0) : kept;
      }
    }
  }
};

}  // namespace
}  // namespace FUSECONV_ISA

template <class Isa>
void GeluDropout::cpu(CpuHost& host, In x, In seed, double p, Out y) {
  pointwise(host, Formula{}, y, x, KeepFactorSource{KeepFactors(seed.data, p)});
}

template void GeluDropout::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, double, Out);

}  // namespace fuseconv
