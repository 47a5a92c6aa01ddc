// The dropout factors of kernels/philox.h as an operand of kernels/pointwise.cuh.
#pragma once

#include "core/coarse.cuh"
#include "kernels/philox.h"

namespace fuseconv::cuda {

struct KeepFactorOperand {
  KeepFactors factors;

  struct Place {
    uint64_t index;  // of the first element
    uint64_t seed;
  };

  template <int>
  __device__ __forceinline__ Place fetch(int64_t index) const {
    return {static_cast<uint64_t>(index), static_cast<uint64_t>(__ldg(factors.seed))};
  }

  // A run is of one element, or begins at a multiple of its own size.
  template <class T, int Size>
  __device__ __forceinline__ Vector<FormulaType<T>, Size> values(Place place) const {
    using A = FormulaType<T>;
    static_assert(Size % 4 == 0 || 4 % Size == 0);
    const A kept(factors.factor), dropped(0);
    const auto factor = [&](uint32_t word) { return word < factors.threshold ? dropped : kept; };
    Vector<A, Size> result;
#pragma unroll
    for (int i = 0; i < Size; i += 4) {
      const PhiloxWords words = philox((place.index + i) / 4, place.seed);
      if constexpr (Size >= 4) {
        result.values[i] = factor(words.x);
        result.values[i + 1] = factor(words.y);
        result.values[i + 2] = factor(words.z);
        result.values[i + 3] = factor(words.w);
      } else if constexpr (Size == 2) {
        const bool upper = place.index % 4 != 0;
        result.values[0] = factor(upper ? words.z : words.x);
        result.values[1] = factor(upper ? words.w : words.y);
      } else {
        const int word = place.index % 4;
        result.values[0] = factor(word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w);
      }
    }
    return result;
  }
};

}  // namespace fuseconv::cuda
