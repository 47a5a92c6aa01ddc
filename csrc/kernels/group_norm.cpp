#include "kernels/group_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/group_positions.h"
#include "kernels/group_rows.h"
#include "kernels/parallel.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // the minimum number of elements per thread

// How many standard deviations a center may be from the mean. At 2, the mean square of the distances is five times the
// variance, which loses two or three bits.
constexpr float kFar = 2;

// Computes a group norm in two passes over the parts of its units: the sums of the distances to a center, and the
// results. The center is the mean of a few values. Where it is far from the mean, the first pass is repeated with the
// mean. With one part for each unit, a thread makes both passes while the part is in its cache. With more parts, all
// threads make each pass together. Parts do not depend on the number of threads, nor do the results.
//
// `Units` is GroupRows, whose units are the groups of an image, or GroupPositions, whose units are images.
template <class Units>
class Passes {
 public:
  using A = typename Units::A;

  Passes(CpuHost& host, const Units& units)
      : host_(host),
        units_(units),
        totals_(static_cast<double*>(host.scratch(sizeof(double) * 2 * units.groups * units.count * units.parts))),
        moments_(static_cast<Moments<A>*>(host.scratch(sizeof(Moments<A>) * units.groups * units.count))),
        is_far_(static_cast<bool*>(host.scratch(sizeof(bool) * units.count))) {}

  void run() {
    if (units_.parts == 1) {
      for_each(units_.count, [&](Scratch& scratch, int64_t unit) {
        guess_centers(scratch, unit);
        for (int pass = 0; pass < kMostPasses && is_far_[unit]; ++pass) {
          add_distances(scratch, unit);
          find_moments(unit);
        }
        store(scratch, unit);
      });
      return;
    }
    Scratch scratch(units_);
    for (int64_t unit = 0; unit < units_.count; ++unit) {
      guess_centers(scratch, unit);
    }
    const int64_t parts = units_.count * units_.parts;
    for (int pass = 0; pass < kMostPasses && std::count(is_far_, is_far_ + units_.count, true) > 0; ++pass) {
      for_each(parts, [&](Scratch& own, int64_t part) {
        if (is_far_[part / units_.parts]) {
          add_distances(own, part);
        }
      });
      for (int64_t unit = 0; unit < units_.count; ++unit) {
        if (is_far_[unit]) {
          find_moments(unit);
        }
      }
    }
    for_each(parts, [&](Scratch& own, int64_t part) { store(own, part); });
  }

 private:
  using Scratch = typename Units::Scratch;

  static constexpr int kMostPasses = 2;  // over x, to find the moments

  // Calls step(scratch, index) for each index.
  template <class Step>
  void for_each(int64_t count, const Step& step) const {
    const int64_t grain = std::max<int64_t>(1, kGrain * units_.parts / (units_.groups * units_.size));
    parallel(host_, count, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(units_);
      for (; begin < end; ++begin) {
        step(scratch, begin);
      }
    });
  }

  Moments<A>* moments_of_unit(int64_t unit) const { return moments_ + unit * units_.groups; }

  // The sums of a part: two for each group.
  double* totals_of_part(int64_t part) const { return totals_ + part * 2 * units_.groups; }

  void guess_centers(Scratch& scratch, int64_t unit) const {
    units_.guess_centers(scratch, unit, moments_of_unit(unit));
    is_far_[unit] = true;
  }

  void add_distances(Scratch& scratch, int64_t part) const {
    const int64_t unit = part / units_.parts;
    units_.add_distances(scratch, unit, part % units_.parts, moments_of_unit(unit), totals_of_part(part));
  }

  // Computes the moments of a unit, of which the center is the mean, rounded.
  void find_moments(int64_t unit) const {
    is_far_[unit] = false;
    for (int64_t group = 0; group < units_.groups; ++group) {
      double distances[2] = {0, 0};
      for (int64_t part = unit * units_.parts; part < (unit + 1) * units_.parts; ++part) {
        distances[0] += totals_of_part(part)[2 * group];
        distances[1] += totals_of_part(part)[2 * group + 1];
      }
      Moments<A>& own = moments_of_unit(unit)[group];
      const auto [center, correction, factor] = moments_of(own.center, distances, units_.size, units_.norm.eps);
      const double mean = center + distances[0] / units_.size;
      own = {static_cast<A>(mean), static_cast<A>(mean - static_cast<A>(mean)), factor};
      is_far_[unit] |= std::abs(correction * factor) > kFar;
    }
  }

  void store(Scratch& scratch, int64_t part) const {
    const int64_t unit = part / units_.parts;
    units_.store(scratch, unit, part % units_.parts, moments_of_unit(unit));
  }

  CpuHost& host_;
  const Units& units_;
  double* totals_;
  Moments<A>* moments_;
  bool* is_far_;  // of each unit, whether a center is, or may be, far from the mean
};

}  // namespace

void group_norm(CpuHost& host, const GroupNorm& norm) {
  if (element_count(norm.x) == 0) {
    return;
  }
  dispatch(norm.x.dtype, [&]<class T>(T) {
    if (is_channels_last(norm.x)) {
      Passes(host, GroupPositions<T>(norm)).run();
    } else {
      Passes(host, GroupRows<T>(norm)).run();
    }
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
