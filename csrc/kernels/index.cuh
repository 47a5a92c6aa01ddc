// Index spaces on CUDA: map the index of an element, or of a run of elements, to its offset in each operand.
#pragma once

#include <algorithm>

#include "core/cuda.cuh"
#include "core/layout.h"

namespace fuseconv::cuda {

// Divides by a number known on the host. 32-bit numbers below 2^31 are divided by one multiplication (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994), wider numbers by a division instruction.
template <class Index>
struct Divisor;

template <>
struct Divisor<uint32_t> {
  uint32_t divisor, multiplier, shift;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(static_cast<uint32_t>(d)), shift(0) {
    while ((uint64_t{1} << shift) < divisor) {
      ++shift;
    }
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

template <>
struct Divisor<int64_t> {
  int64_t divisor;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(d) {}
  __device__ __forceinline__ int64_t quotient(int64_t n) const { return n / divisor; }
};

// If Index has 32 bits, strides have 32 bits too, so that one multiply-add advances a 64-bit offset.
template <class Index>
using Stride = std::conditional_t<sizeof(Index) == 4, uint32_t, int64_t>;

// Returns whether 32-bit numbers can represent the strides and the number of runs of `run` elements. The number of runs
// must be so far below 2^31 that the last step of a grid, which may exceed it, does not overflow.
inline bool fits_32_bits(const Loop& loop, int operands, int run) {
  bool fits = loop.count() / run < (int64_t{1} << 31) - (int64_t{1} << 20);
  for (int operand = 0; operand < operands; ++operand) {
    for (int axis = 0; axis < loop.rank; ++axis) {
      const int64_t step = loop.strides[operand][axis] * (axis == loop.rank - 1 ? run : 1);
      fits &= loop.sizes[axis] == 1 || step < (int64_t{1} << 32);
    }
  }
  return fits;
}

// An index space of runs along the innermost axis. It includes a last run with fewer than `run` elements. Axes are
// stored innermost first.
template <class Index, int Operands>
struct IndexSpace {
  int32_t rank;
  Index count;  // the number of runs
  Divisor<Index> sizes[kMaxRank];
  Stride<Index> strides[kMaxRank][Operands];
  Stride<Index> outermost[Operands];

  IndexSpace() = default;
  IndexSpace(const Loop& loop, int run) : rank(loop.rank), count(1), strides{}, outermost{} {
    for (int axis = 0; axis < rank; ++axis) {
      const int own = loop.rank - 1 - axis;
      const int64_t step = axis == 0 ? run : 1;
      const int64_t size = (loop.sizes[own] + step - 1) / step;
      sizes[axis] = Divisor<Index>(std::max<int64_t>(size, 1));
      count *= static_cast<Index>(size);
      for (int operand = 0; operand < Operands; ++operand) {
        strides[axis][operand] = static_cast<Stride<Index>>(loop.strides[operand][own] * step);
        outermost[operand] = strides[axis][operand];
      }
    }
  }

  // Adds the offset of the first element of a run to the offset of each operand. Most spaces have one or two axes; for
  // these, no array is indexed by a runtime value.
  __device__ __forceinline__ void locate(Index run, int64_t (&offsets)[Operands]) const {
    Index rest = run;
    if (rank > 1) {
      rest = step(0, rest, offsets);
#pragma unroll 1
      for (int axis = 1; axis < rank - 1; ++axis) {
        rest = step(axis, rest, offsets);
      }
    }
#pragma unroll
    for (int operand = 0; operand < Operands; ++operand) {
      offsets[operand] += product(rest, outermost[operand]);
    }
  }

 private:
  __device__ __forceinline__ Index step(int axis, Index rest, int64_t (&offsets)[Operands]) const {
    const Index quotient = sizes[axis].quotient(rest);
    const Index position = rest - quotient * sizes[axis].divisor;
#pragma unroll
    for (int operand = 0; operand < Operands; ++operand) {
      offsets[operand] += product(position, strides[axis][operand]);
    }
    return quotient;
  }

  static __device__ __forceinline__ int64_t product(uint32_t a, uint32_t b) {
    return static_cast<int64_t>(uint64_t{a} * b);
  }
  static __device__ __forceinline__ int64_t product(int64_t a, int64_t b) { return a * b; }
};

// Returns whether runs of `size` elements along the innermost axis are aligned in an operand, and are either contiguous
// or broadcast from one element. The last run of a one-axis loop may be shorter.
template <class T>
bool has_aligned_runs(const Loop& loop, int operand, const void* data, int size) {
  const int inner = loop.rank - 1;
  const int64_t stride = loop.strides[operand][inner];
  bool aligned = stride == 0 || (stride == 1 && is_aligned(data));
  for (int axis = 0; axis < inner; ++axis) {
    aligned &= stride == 0 || loop.strides[operand][axis] % size == 0;
  }
  return aligned;
}

}  // namespace fuseconv::cuda
