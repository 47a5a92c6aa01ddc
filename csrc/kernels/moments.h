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

template <class A>
Moments<A> moments(const A* s, int64_t n, double eps, bool centred) {
  const double share = 1.0 / n;
  double total;
  if (!centred) {
    sum_row<1>(s, n, [](const auto& x, auto* t) { t[0] = x * x; }, &total);
    return {A(0), A(0), static_cast<A>(1 / std::sqrt(total * share + eps))};
  }
  sum_row<1>(s, n, [](const auto& x, auto* t) { t[0] = x; }, &total);
  const A center = static_cast<A>(total * share);
  double distances[2];
  sum_row<2>(s, n, distances_to(center), distances);
  return moments_of(center, distances, n, eps);
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
