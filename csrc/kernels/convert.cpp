#include "kernels/convert.h"

#include "kernels/pointwise.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

struct Scaled {
  double factor;

  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return static_cast<A>(factor) * x;
  }
};

// Reads dense memory of type T as values of the compute type.
template <class T>
struct Widened {
  const T* data;

  template <int64_t kMost, class A>
  void fill(int64_t index, int64_t, A* values, int64_t n) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      values[i] = static_cast<A>(widen(data[index + i]));
    }
  }
};

}  // namespace
}  // namespace FUSECONV_ISA

template <class Isa>
void Convert::cpu(CpuHost& host, In x, double scale, Out y) {
  const int64_t count = element_count(y), one = 1;
  const Out flat{y.data, y.dtype, 1, &count, &one};
  dispatch(x.dtype,
           [&]<class T>(T) { pointwise(host, Scaled{scale}, flat, Widened<T>{static_cast<const T*>(x.data)}); });
}

template void Convert::cpu<isa::FUSECONV_ISA>(CpuHost&, In, double, Out);

}  // namespace fuseconv
