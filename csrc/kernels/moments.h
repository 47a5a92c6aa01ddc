// Computes the moments by which a row is normalized: the mean and the variance, or the mean square if the norm is not
// centered. Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/row_sum.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The parameters of the normalization of a row, which replaces each element s by (s - center - correction) * factor.
template <class A>
struct Moments {
  A center;
  A correction;
  A factor;
};

// The terms of the corrected two-pass algorithm (Chan, Golub and LeVeque, "Algorithms for computing the sample
// variance", 1983). The distances to a center near the mean are small and nearly exact, and their own mean corrects the
// error of the center.
template <class A>
auto distances_to(A center) {
  return [center](const auto& x, auto* t) {
    t[0] = x - center;
    t[1] = t[0] * t[0];
  };
}

// Returns the moments of n values, of which `distances` contains the sums of `distances_to(center)`.
template <class A>
Moments<A> moments_of(A center, const double* distances, int64_t n, double eps) {
  const double share = 1.0 / n, correction = distances[0] * share;
  const double variance = std::max(distances[1] * share - correction * correction, 0.0);
  return {center, static_cast<A>(correction), static_cast<A>(1 / std::sqrt(variance + eps))};
}

inline constexpr int64_t kMomentRows = 16;

// Computes the moments of `count` rows of n values, at most kMomentRows. Each step is done for all rows before the next
// one: the steps of one row wait for each other, but the processor computes the same step of several rows in parallel.
template <class A>
void find_moments(const A* const* rows, int64_t count, int64_t n, double eps, bool centred, Moments<A>* moments) {
  const double share = 1.0 / n;
  double totals[kMomentRows][2];
  if (!centred) {
    for (int64_t r = 0; r < count; ++r) {
      sum_row<1>(rows[r], n, [](const auto& x, auto* t) { t[0] = x * x; }, totals[r]);
    }
    for (int64_t r = 0; r < count; ++r) {
      moments[r] = {A(0), A(0), static_cast<A>(1 / std::sqrt(totals[r][0] * share + eps))};
    }
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    sum_row<1>(rows[r], n, [](const auto& x, auto* t) { t[0] = x; }, totals[r]);
  }
  for (int64_t r = 0; r < count; ++r) {
    moments[r].center = static_cast<A>(totals[r][0] * share);
    sum_row<2>(rows[r], n, distances_to(moments[r].center), totals[r]);
  }
  for (int64_t r = 0; r < count; ++r) {
    moments[r] = moments_of(moments[r].center, totals[r], n, eps);
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
