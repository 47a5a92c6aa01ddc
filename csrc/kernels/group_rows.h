// Group norm on the CPU by rows: a row is a group of an image. Compiled once per instruction set.
//
// Each pass converts a row by blocks that stay in the L1 cache. A row whose elements are not adjacent is copied first.
#pragma once

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/group_affine.h"
#include "kernels/matrix_copy.h"
#include "kernels/moments.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The units are rows. They have any strides in x, and are dense in y. A part is a run of a row's elements.
template <class T>
class GroupRows {
 public:
  using A = Compute<T>;

  // A part. `begin` is its first element in the row, and `y` the row's place in y. `values` are its elements, in x or
  // in the buffer.
  struct Scratch {
    explicit Scratch(const GroupRows& rows) : buffer(rows.is_dense() ? 0 : (rows.size + rows.parts - 1) / rows.parts) {}
    Buffer<T> buffer;
    int64_t unit = -1, part = -1, begin = 0, n = 0;
    const T* values = nullptr;
    T* y = nullptr;
  };

  static constexpr int64_t groups = 1;  // of a unit
  const GroupNorm& norm;
  const int64_t count;  // the number of units
  const int64_t size;   // the number of elements of a group
  const int64_t parts;  // the number of parts of a unit

  explicit GroupRows(const GroupNorm& norm)
      : norm(norm),
        count(norm.x.sizes[0] * norm.groups),
        size(element_count(norm.x) / count),
        parts(std::max<int64_t>(1, size / kGroupPart)),
        channels_(norm.x.sizes[1] / norm.groups),
        rows_(loop_over(grouped(norm.y, norm.groups), grouped(norm.x, norm.groups), 0, 2)),
        within_(loop_over(grouped(norm.y, norm.groups), grouped(norm.x, norm.groups), 2, norm.x.rank + 1)),
        affine_(norm) {}

  // Takes the mean of some elements, in equal distances.
  void guess_centers(Scratch&, int64_t unit, Moments<A>* moments) const {
    const T* const x = static_cast<const T*>(norm.x.data) + Position(rows_, 2, unit).offsets()[1];
    const int64_t n = std::min(size, kGuessed), step = size / n;
    const A share = A(1) / n;
    A total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = i * step;
      total += widen(x[within_.rank == 1 ? at * within_.strides[1][0] : Position(within_, 2, at).offsets()[1]]) * share;
    }
    moments->center = total;
  }

  void add_distances(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments, double* totals) const {
    load(own, unit, part);
    alignas(64) A buffer[kRun];
    totals[0] = totals[1] = 0;
    for (int64_t start = 0; start < own.n; start += kRun) {
      const int64_t n = std::min(kRun, own.n - start);
      double sums[2];
      sum_row<2>(load_block(own.values + start, 1, n, buffer), n, distances_to(moments->center), sums);
      totals[0] += sums[0];
      totals[1] += sums[1];
    }
  }

  void store(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments) const {
    load(own, unit, part);
    const auto [center, correction, factor] = *moments;
    const int64_t span = size / channels_, first_channel = unit % norm.groups * channels_;
    const auto scale_of = [&](int64_t channel) { return factor * affine_.weight(first_channel + channel); };
    const auto shift_of = [&](int64_t channel, A scale) {
      return affine_.bias(first_channel + channel) - correction * scale;
    };
    alignas(64) A widened[kBlock], block[kBlock], scales[kBlock], shifts[kBlock];
    for (int64_t start = 0, n; start < own.n; start += n) {
      const int64_t place = own.begin + start, channel = place / span, left = (channel + 1) * span - place;
      n = std::min({kBlock, own.n - start, span < kShort ? kBlock : left});
      const A* const s = load_block(own.values + start, 1, n, widened);
      A* const values = result_block(own.y + place, 1, block);
      if (n <= left) {
        const A scale = scale_of(channel), shift = shift_of(channel, scale);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          values[i] = (s[i] - center) * scale + shift;
        }
      } else {
        for (int64_t i = 0, own_channel = channel, stop = left; i < n; ++own_channel, stop += span) {
          const A scale = scale_of(own_channel), shift = shift_of(own_channel, scale);
          for (; i < std::min(stop, n); ++i) {
            scales[i] = scale;
            shifts[i] = shift;
          }
        }
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          values[i] = (s[i] - center) * scales[i] + shifts[i];
        }
      }
      affine_.activate(values, n);
      store_block(values, own.y + place, 1, n);
    }
  }

 private:
  static constexpr int64_t kGuessed = 16;
  static constexpr int64_t kRun = 4 * kBlock;  // elements that are converted and added at once
  static constexpr int64_t kShort = 64;        // elements of a channel, below which a block has several channels

  // Loads a part, unless it was the last one that was loaded.
  void load(Scratch& own, int64_t unit, int64_t part) const {
    if (own.unit == unit && own.part == part) {
      return;
    }
    own.unit = unit;
    own.part = part;
    own.begin = size * part / parts;
    own.n = size * (part + 1) / parts - own.begin;
    const Position row(rows_, 2, unit);
    own.y = static_cast<T*>(norm.y.data) + row.offsets()[0];
    const T* const x = static_cast<const T*>(norm.x.data) + row.offsets()[1];
    own.values = is_dense() ? x + own.begin : own.buffer.data();
    if (!is_dense()) {
      copy_steps(within_, 2, 1, x, own.begin, own.n, own.buffer.data());
    }
  }

  // Returns whether the elements of a row are adjacent in x.
  bool is_dense() const { return within_.rank == 1 && within_.strides[1][0] == 1; }

  const int64_t channels_;  // of a row
  const Loop rows_, within_;
  const GroupAffine<T> affine_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
