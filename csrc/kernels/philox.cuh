// Makes the dropout factors of kernels/philox.h an operand of kernels/pointwise.cuh.
#pragma once

#include "core/coarse.cuh"
#include "core/host.h"
#include "kernels/philox.h"

namespace fuseconv::cuda {

struct KeepFactorOperand {
  KeepFactors factors;
  int64_t first = 0;  // the index of the first element of the slab

  struct Place {
    uint64_t index;  // the index of the first element
    uint64_t seed;
  };

  KeepFactorOperand from(int64_t offset) const { return {factors, first + offset}; }

  template <int>
  __device__ __forceinline__ Place fetch(int64_t offset) const {
    return {static_cast<uint64_t>(first + offset), static_cast<uint64_t>(__ldg(factors.seed))};
  }

  // A run starts at a multiple of its size, which is at most 8 elements.
  template <class T, int Size>
  __device__ __forceinline__ Vector<FormulaType<T>, Size> values(Place place) const {
    using A = FormulaType<T>;
    static_assert(8 % Size == 0);
    const A kept(factors.factor), dropped(0);
    const PhiloxWords drawn = philox(place.index / 8, place.seed);
    const uint32_t words[] = {drawn.x, drawn.y, drawn.z, drawn.w};
    const int part = static_cast<int>(place.index % 8) / Size;
    Vector<A, Size> result;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      // The word is selected without indexing the array at run time, which would place the words in local memory.
      uint32_t word = words[i / 2];
#pragma unroll
      for (int other = 1; other < 8 / Size; ++other) {
        word = part == other ? words[(other * Size + i) / 2] : word;
      }
      const bool upper = Size == 1 ? place.index % 2 != 0 : i % 2 != 0;
      result.values[i] = factors.drops(word, upper) ? dropped : kept;
    }
    return result;
  }
};

inline KeepFactorOperand keep_factors(CudaHost&, const KeepFactors& factors) { return {factors}; }

}  // namespace fuseconv::cuda
