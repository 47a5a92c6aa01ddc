// Group norm on the CPU of channels-last images: all groups of an image at once, so that memory is read in order.
// Compiled once per instruction set.
#pragma once

#include <algorithm>

#include "kernels/group_rows.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The units are images. A part is a run of an image's positions, which are read in lines of one or more of them. Of
// each element of a line, the sums over the lines are kept, and at the end of a part they are added up by groups.
template <class T>
class GroupPositions {
 public:
  using A = Compute<T>;

  // Vectors with a value for each element of a line.
  struct Scratch {
    explicit Scratch(const GroupPositions& images)
        : buffer(4 * images.line_),
          values(buffer.data()),
          center(values + images.line_),
          scale(center + images.line_),
          shift(scale + images.line_),
          totals(2 * images.line_) {}
    Buffer<A> buffer;
    A *const values, *const center, *const scale, *const shift;
    Buffer<double> totals;
  };

  const GroupNorm& norm;
  const int64_t groups;              // of a unit
  const int64_t count, size, parts;  // of the units; of the elements of a group; of the parts of a unit

  explicit GroupPositions(const GroupNorm& norm)
      : norm(norm),
        groups(norm.groups),
        count(norm.x.sizes[0]),
        size(element_count(norm.x) / (count * groups)),
        parts(std::max<int64_t>(1, size * groups / kGroupPart)),
        channels_(norm.x.sizes[1]),
        places_(loop_over(copy_of(norm.y), copy_of(norm.x), 2, norm.x.rank)),
        is_dense_(places_.rank == 1 && places_.strides[1][0] == channels_),
        line_(is_dense_ ? std::max<int64_t>(kBlock / channels_, 1) * channels_ : channels_),
        affine_(norm) {}

  // Takes the means of the first line.
  void guess_centers(Scratch& own, int64_t unit, Moments<A>* moments) const {
    const int64_t n = std::min(line_, size * groups);
    const T* const x = static_cast<const T*>(norm.x.data) + unit * norm.x.strides[0];
    double* const totals = own.totals.data();
    std::fill_n(totals, groups, 0.0);
    for_each_element(n, [&](int64_t group, int64_t i) { totals[group] += widen(x[i]); });
    for (int64_t group = 0; group < groups; ++group) {
      moments[group].center = static_cast<A>(totals[group] * groups / n);
    }
  }

  void add_distances(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments, double* totals) const {
    fill_centers(own, moments);
    const A* const center = own.center;
    A *const sums = own.scale, *const squares = own.shift;  // adjacent, and not yet in use
    double* const all = own.totals.data();
    std::fill_n(sums, 2 * line_, A(0));
    std::fill_n(all, 2 * line_, 0.0);
    int pending = 0;
    const auto flush = [&] {
#pragma omp simd
      for (int64_t i = 0; i < 2 * line_; ++i) {
        all[i] += sums[i];
        sums[i] = 0;
      }
      pending = 0;
    };
    for_each_line(unit, part, [&](const T* x, T*, int64_t n) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const A distance = widen(x[i]) - center[i];
        sums[i] += distance;
        squares[i] += distance * distance;
      }
      if (++pending == kLines) {
        flush();
      }
    });
    flush();
    std::fill_n(totals, 2 * groups, 0.0);
    for_each_element(line_, [&](int64_t group, int64_t i) {
      totals[2 * group] += all[i];
      totals[2 * group + 1] += all[line_ + i];
    });
  }

  void store(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments) const {
    fill_centers(own, moments);
    for_each_element(channels_, [&](int64_t group, int64_t i) {
      own.scale[i] = moments[group].factor * affine_.weight(i);
      own.shift[i] = affine_.bias(i) - moments[group].correction * own.scale[i];
    });
    for (int64_t i = channels_; i < line_; ++i) {
      own.scale[i] = own.scale[i - channels_];
      own.shift[i] = own.shift[i - channels_];
    }
    const A *const center = own.center, *const scale = own.scale, *const shift = own.shift;
    for_each_line(unit, part, [&](const T* x, T* y, int64_t n) {
      A* const values = result_block(y, 1, own.values);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        values[i] = (widen(x[i]) - center[i]) * scale[i] + shift[i];
      }
      affine_.activate(values, n);
      store_block(values, y, 1, n);
    });
  }

 private:
  static Spec copy_of(In x) {
    Spec own{x.dtype, x.rank, {}, {}};
    std::copy_n(x.sizes, x.rank, own.sizes);
    std::copy_n(x.strides, x.rank, own.strides);
    return own;
  }

  // Calls `function` with the group and the number of each element of a line of n elements.
  template <class Function>
  void for_each_element(int64_t n, const Function& function) const {
    const int64_t width = channels_ / groups;
    for (int64_t i = 0; i < n;) {
      for (int64_t group = 0; group < groups; ++group) {
        for (const int64_t end = i + width; i < end; ++i) {
          function(group, i);
        }
      }
    }
  }

  void fill_centers(Scratch& own, const Moments<A>* moments) const {
    for_each_element(line_, [&](int64_t group, int64_t i) { own.center[i] = moments[group].center; });
  }

  // Calls `line` with each line of a part.
  template <class Line>
  void for_each_line(int64_t unit, int64_t part, const Line& line) const {
    const int64_t positions = size * groups / channels_, at_once = line_ / channels_;
    const int64_t lines = (positions + at_once - 1) / at_once;
    const int64_t begin = lines * part / parts * at_once;
    const int64_t end = std::min(lines * (part + 1) / parts * at_once, positions);
    const T* const x = static_cast<const T*>(norm.x.data) + unit * norm.x.strides[0];
    T* const y = static_cast<T*>(norm.y.data) + unit * norm.y.strides[0];
    Position place(places_, 2, begin);
    for (int64_t at = begin; at < end; at += at_once) {
      const int64_t* const offsets = place.offsets();
      line(x + offsets[1], y + offsets[0], std::min(at_once, end - at) * channels_);
      if (at + at_once < end) {
        place.advance(at_once);
      }
    }
  }

  static constexpr int kLines = 256;  // whose terms are added in the compute type

  const int64_t channels_;
  const Loop places_;  // the positions of an image, of y and x
  const bool is_dense_;
  const int64_t line_;  // elements
  const GroupAffine<T> affine_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
