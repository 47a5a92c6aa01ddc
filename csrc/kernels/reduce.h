// Computes y[o] = finish(sum over i of term(x[o, i]), n), where n is the number of terms, over any dims and strides.
// Compiled once per instruction set.
//
// The formula is a functor with two members. `term(x, t)` sets t, and must set t = 0 for x = 0; it is called with
// values and with vectors (GNU vector extensions) of the compute type. `finish(total, n)` returns the result. At most
// sixteen terms are added in sequence in the compute type; the totals are in f64. The order of the additions depends
// only on sizes and strides, not on the number of threads.
#pragma once

#if defined(__CUDACC__)
#include "kernels/reduce.cuh"
#elif defined(FUSECONV_KERNELS)
#include <span>

#include "core/dtype.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/row_sum.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// A formula over dense values of the compute type A.
template <class A>
struct ReductionFormula {
  // totals[r] += sum of the n terms of row r, of which the first is at x + r * stride
  void (*sum)(const A* x, int64_t stride, int64_t n, int64_t rows, double* totals);
  void (*add)(const A* x, int64_t n, A* partial_sums);  // adds one term to each of n sums
  void (*finish)(const double* totals, int64_t n, int64_t terms, A* results);
};

template <class Formula, class A>
inline constexpr ReductionFormula<A> reduction_formula{
    [](const A* x, int64_t stride, int64_t n, int64_t rows, double* totals) {
      for (int64_t r = 0; r < rows; ++r) {
        double total;
        sum_row<1>(x + r * stride, n, [](const auto& value, auto* t) { Formula{}.term(value, t[0]); }, &total);
        totals[r] += total;
      }
    },
    [](const A* x, int64_t n, A* partial_sums) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        A t;
        Formula{}.term(x[i], t);
        partial_sums[i] += t;
      }
    },
    [](const double* totals, int64_t n, int64_t terms, A* results) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        results[i] = static_cast<A>(Formula{}.finish(totals[i], terms));
      }
    },
};

// Computes all results of the reduction. Defined in reduce.cpp for the four element types.
template <class T>
void run_reduction(CpuHost& host, const ReductionLoops& loops, void* y, const void* x,
                   const ReductionFormula<Compute<T> >& formula);

template <class Formula>
void reduce(CpuHost& host, const Formula&, Out y, In x, std::span<const int64_t> dims) {
  const ReductionLoops loops = reduction_loops(x, dims);
  dispatch(x.dtype,
           [&]<class T>(T) { run_reduction<T>(host, loops, y.data, x.data, reduction_formula<Formula, Compute<T> >); });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
#endif
