// The reductions of kernels/reduce.h on CUDA: y[o] = finish(sum over i of term(x[o, i]), n).
//
// If the elements of one sum are adjacent in memory ("by rows"), a group of threads adds them: 1 to 32 threads, or a
// block if rows are long or few. Otherwise ("by columns"), adjacent threads compute adjacent sums. Both variants read
// 16 bytes at a time if runs are aligned. If there are too few sums to occupy all SMs, each sum is cut into several
// parts. The sums of the parts are written to a scratch buffer, and a second launch of the same kernels adds them. The
// order of the additions is the same on every run.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "core/cuda.cuh"
#include "core/isa.h"
#include "core/layout.h"
#include "kernels/index.cuh"
#include "kernels/run.cuh"

namespace fuseconv::cuda {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceUnroll = 4;
// the number of steps, of kReduceUnroll runs each, that are added in the compute type before the sum is added to the
// total
inline constexpr int kReduceSteps = 8;
inline constexpr int kBlocksPerSm = 8;

// The arguments of a reduction of elements of type X to results of type T, or to partial sums if there are several
// parts. Totals are in f64, which costs little because they need few additions, and makes a result as accurate as its
// own rounding.
template <class X, class T, class Index>
struct ReduceArguments {
  IndexSpace<Index, 2> kept;   // operands: y, x; in runs if x is read by columns
  IndexSpace<Index, 1> taken;  // operand: x; in runs if x is read by rows
  int64_t y_stride;            // along the innermost kept axis
  int64_t sums;
  int64_t terms;     // the number of elements in a sum
  Index taken_runs;  // the number of whole runs
  Index part;        // the number of runs in a part
  int32_t group;     // the number of adjacent threads that add one row, or that compute adjacent sums
  const X* x;
  T* y;
  double* parts;  // [parts, sums], or null
};

template <class Formula, class A>
__device__ __forceinline__ A term_of(A x) {
  A t;
  Formula{}.term(x, t);
  return t;
}

// Adds the terms of every `stride`-th run of [begin, end), where `at(run)` returns the address of a run. If there are
// as many totals as elements in a run, adds each element to its own total; if there is one total, adds all elements to
// it.
template <class Formula, int Size, class X, class Index, int Totals, class At>
__device__ __forceinline__ void add_runs(Index begin, Index end, Index stride, At at, double (&totals)[Totals]) {
  static_assert(Totals == 1 || Totals == Size);
  using A = Compute<X>;
  while (begin < end) {
    A sums[Size] = {};
#pragma unroll 1
    for (int step = 0; step < kReduceSteps && begin < end; ++step, begin += kReduceUnroll * stride) {
      Run<X, Size> runs[kReduceUnroll] = {};
      if (begin + (kReduceUnroll - 1) * stride < end) {
        const X* places[kReduceUnroll];
#pragma unroll
        for (int u = 0; u < kReduceUnroll; ++u) {
          places[u] = at(begin + u * stride);
        }
#pragma unroll
        for (int u = 0; u < kReduceUnroll; ++u) {
          runs[u] = load_run<Size>(places[u]);
        }
      } else {
#pragma unroll
        for (int u = 0; u < kReduceUnroll; ++u) {
          if (begin + u * stride < end) {
            runs[u] = load_run<Size>(at(begin + u * stride));
          }
        }
      }
      A values[kReduceUnroll][Size];
#pragma unroll
      for (int u = 0; u < kReduceUnroll; ++u) {
        widen_run(runs[u], values[u]);
      }
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        static_assert(kReduceUnroll == 4);
        sums[i] += (term_of<Formula>(values[0][i]) + term_of<Formula>(values[1][i])) +
                   (term_of<Formula>(values[2][i]) + term_of<Formula>(values[3][i]));
      }
    }
    if constexpr (Totals == 1) {
#pragma unroll
      for (int width = Size / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) {
          sums[i] += sums[i + width];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Totals; ++i) {
      totals[i] += sums[i];
    }
  }
}

template <class Formula, class X, class T, class Index>
__device__ __forceinline__ void put(const ReduceArguments<X, T, Index>& a, int64_t sum, int64_t y_offset,
                                    double total) {
  if (a.parts != nullptr) {
    a.parts[blockIdx.y * a.sums + sum] = total;
  } else {
    a.y[y_offset] = narrow<T>(static_cast<Compute<T>>(Formula{}.finish(total, a.terms)));
  }
}

// One group of threads computes each sum. A group larger than a warp is the whole block.
template <class Formula, int Size, class X, class T, class Index>
__global__ void __launch_bounds__(kReduceThreads) reduce_rows(const __grid_constant__ ReduceArguments<X, T, Index> a) {
  const int64_t sum = static_cast<int64_t>(blockIdx.x) * (blockDim.x / a.group) + threadIdx.x / a.group;
  const int lane = threadIdx.x % a.group;
  const Index begin = blockIdx.y * a.part;
  const Index end = min(begin + a.part, a.taken_runs);
  int64_t offsets[2] = {};
  double total = 0;
  if (sum < a.sums) {
    a.kept.locate(static_cast<Index>(sum), offsets);
    double totals[1] = {};
    const auto at = [&](Index run) {
      int64_t offset[1] = {offsets[1]};
      a.taken.locate(run, offset);
      return a.x + offset[0];
    };
    add_runs<Formula, Size, X, Index>(begin + lane, end, a.group, at, totals);
    // Adds the elements after the last whole run of a row.
    if (Size > 1 && end == a.taken_runs) {
      for (int64_t i = static_cast<int64_t>(a.taken_runs) * Size + lane; i < a.terms; i += a.group) {
        totals[0] += term_of<Formula>(widen(a.x[offsets[1] + i]));
      }
    }
    total = totals[0];
  }
  for (int distance = min(a.group, 32) / 2; distance > 0; distance /= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, distance);
  }
  if (a.group > 32) {
    __shared__ double warps[kReduceThreads / 32];
    if (threadIdx.x % 32 == 0) {
      warps[threadIdx.x / 32] = total;
    }
    __syncthreads();
    total = 0;
    for (int warp = 0; warp < a.group / 32; ++warp) {
      total += warps[warp];
    }
  }
  if (lane == 0 && sum < a.sums) {
    put<Formula>(a, sum, offsets[0], total);
  }
}

// One thread computes each run of sums: `group` threads cover adjacent sums, and the other threads of the block add
// other terms of the same sums.
template <class Formula, int Size, class X, class T, class Index>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns(const __grid_constant__ ReduceArguments<X, T, Index> a) {
  __shared__ double shared[kReduceThreads][Size];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * a.group + threadIdx.x % a.group;
  const int lane = threadIdx.x / a.group;
  const int lanes = kReduceThreads / a.group;
  const Index begin = blockIdx.y * a.part;
  const Index end = min(begin + a.part, a.taken_runs);
  int64_t offsets[2] = {};
  double totals[Size] = {};
  if (column < a.kept.count) {
    a.kept.locate(static_cast<Index>(column), offsets);
    const auto at = [&](Index run) {
      int64_t offset[1] = {offsets[1]};
      a.taken.locate(run, offset);
      return a.x + offset[0];
    };
    add_runs<Formula, Size, X, Index>(begin + lane, end, lanes, at, totals);
  }
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    shared[threadIdx.x][i] = totals[i];
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (lane < distance) {
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        shared[threadIdx.x][i] += shared[threadIdx.x + distance * a.group][i];
      }
    }
  }
  if (lane == 0 && column < a.kept.count) {
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      put<Formula>(a, column * Size + i, offsets[0] + i * a.y_stride, shared[threadIdx.x][i]);
    }
  }
}

// The formula by which the second launch adds the sums of the parts. If there are very many parts, their addition is
// itself cut into parts.
template <class Formula>
struct SumOfParts {
  using Self = SumOfParts;

  template <class A>
  FUSECONV_INLINE void term(const A& x, A& t) const {
    t = x;
  }
  template <class A>
  FUSECONV_INLINE A finish(A total, int64_t terms) const {
    return Formula{}.finish(total, terms);
  }
};

template <class Formula>
struct SumOfParts<SumOfParts<Formula>> {
  using Self = SumOfParts<Formula>;
};

inline bool is_by_rows(const ReductionLoops& loops) {
  const auto distance = [](const Loop& loop, int operand) {
    const int64_t stride = loop.strides[operand][loop.rank - 1];
    return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
  };
  return loops.kept.count() == 1 || distance(loops.taken, 0) <= distance(loops.kept, 1);
}

// Returns whether all runs of x are aligned, at every position of both loops. If `by_rows`, runs lie along the reduced
// axes, otherwise along the kept axes.
template <class X>
bool has_aligned_runs(const ReductionLoops& loops, bool by_rows, const X* x) {
  const Loop& runs = by_rows ? loops.taken : loops.kept;
  const Loop& other = by_rows ? loops.kept : loops.taken;
  const int operand = by_rows ? 0 : 1;
  const bool whole = runs.sizes[runs.rank - 1] % kVectorSize<X> == 0 || (by_rows && runs.rank == 1);
  bool aligned =
      whole && runs.strides[operand][runs.rank - 1] == 1 && has_aligned_runs<X>(runs, operand, x, kVectorSize<X>);
  for (int axis = 0; axis < other.rank; ++axis) {
    aligned &= other.sizes[axis] == 1 || other.strides[1 - operand][axis] % kVectorSize<X> == 0;
  }
  return aligned;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Formula, int Size, class Index, class X, class T>
void launch_reduction(CudaHost& host, const ReductionLoops& loops, bool by_rows, T* y, const X* x, int64_t terms) {
  ReduceArguments<X, T, Index> a{};
  a.kept = IndexSpace<Index, 2>(loops.kept, by_rows ? 1 : Size);
  a.taken = IndexSpace<Index, 1>(loops.taken, by_rows ? Size : 1);
  a.y_stride = loops.kept.strides[0][loops.kept.rank - 1];
  a.sums = loops.kept.count();
  a.terms = terms;
  const int64_t taken_runs = loops.taken.count() / (by_rows ? Size : 1);
  a.taken_runs = static_cast<Index>(taken_runs);
  a.x = x;
  a.y = y;

  const int64_t sms = sm_count();
  const int64_t side_by_side = by_rows ? taken_runs : static_cast<int64_t>(a.kept.count);
  a.group = 1;
  while (a.group < 32 && a.group < side_by_side) {
    a.group *= 2;
  }
  if (by_rows && taken_runs >= 64 && a.sums < sms * 64) {
    a.group = kReduceThreads;
  } else if (by_rows) {
    // Enlarges the group while each thread still has enough to load, so that all loads of a row are in flight at once.
    while (a.group >= 32 && a.group < kReduceThreads && taken_runs >= 4 * a.group * kReduceUnroll) {
      a.group *= 2;
    }
  }
  const int threads = by_rows && a.group > 32 ? a.group : kReduceThreads;
  const int lanes = by_rows ? a.group : kReduceThreads / a.group;
  const int64_t blocks = by_rows ? ceil_div(a.sums, threads / a.group) : ceil_div(a.kept.count, a.group);
  int64_t parts = 1;
  if (!by_rows || a.group == kReduceThreads) {
    const int64_t most = std::min<int64_t>(taken_runs / (lanes * kReduceUnroll), 65535);
    parts = std::max<int64_t>(1, std::min(sms * kBlocksPerSm / blocks, most));
  }
  const int64_t part = std::max<int64_t>(1, ceil_div(taken_runs, parts));
  parts = std::max<int64_t>(1, ceil_div(taken_runs, part));
  a.part = static_cast<Index>(part);
  if (parts > 1) {
    a.parts = static_cast<double*>(host.scratch(parts * a.sums * sizeof(double)));
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  if (by_rows) {
    reduce_rows<Formula, Size><<<grid, threads, 0, stream_of(host)>>>(a);
  } else {
    reduce_columns<Formula, Size><<<grid, kReduceThreads, 0, stream_of(host)>>>(a);
  }
  check_launch("a reduction");
  if (parts > 1) {
    ReductionLoops rest{loops.kept, {}};
    int64_t stride = 1;
    for (int axis = rest.kept.rank - 1; axis >= 0; --axis) {
      rest.kept.strides[1][axis] = stride;
      stride *= rest.kept.sizes[axis];
    }
    rest.taken.rank = 1;
    rest.taken.sizes[0] = parts;
    rest.taken.strides[0][0] = a.sums;
    launch_reduction<typename SumOfParts<Formula>::Self, 1, uint32_t>(host, rest, is_by_rows(rest), y,
                                                                      static_cast<const double*>(a.parts), terms);
  }
}

template <class Formula>
void reduce(CudaHost& host, const Formula&, Out y, In x, std::span<const int64_t> dims) {
  static_assert(std::is_empty_v<Formula>, "the kernel makes the formula itself");
  const ReductionLoops loops = reduction_loops(x, dims);
  if (loops.kept.count() == 0) {
    return;
  }
  const bool by_rows = is_by_rows(loops);
  const int64_t terms = loops.taken.count();
  dispatch(x.dtype, [&]<class T>(T) {
    const T* data = static_cast<const T*>(x.data);
    T* result = static_cast<T*>(y.data);
    constexpr int kSize = kVectorSize<T>;
    if (has_aligned_runs(loops, by_rows, data) && fits_32_bits(loops.kept, 2, by_rows ? 1 : kSize) &&
        fits_32_bits(loops.taken, 1, by_rows ? kSize : 1)) {
      launch_reduction<Formula, kSize, uint32_t>(host, loops, by_rows, result, data, terms);
    } else if (fits_32_bits(loops.kept, 2, 1) && fits_32_bits(loops.taken, 1, 1)) {
      launch_reduction<Formula, 1, uint32_t>(host, loops, by_rows, result, data, terms);
    } else {
      launch_reduction<Formula, 1, int64_t>(host, loops, by_rows, result, data, terms);
    }
  });
}

}  // namespace fuseconv::cuda
