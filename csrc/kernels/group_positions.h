// Group norm on the CPU of channels-last images: all groups of an image at once, so that memory is read in order.
// Compiled once per instruction set.
#pragma once

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/group_affine.h"
#include "kernels/moments.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The units are images. A line is one position, or several adjacent ones, and a part is a run of lines. Each element of
// a line has sums of its own, over all lines of a part.
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
  const int64_t groups;  // of a unit
  const int64_t count;   // the number of units
  const int64_t size;    // the number of elements of a group

 private:
  const int64_t channels_, positions_;
  const Loop places_;      // the positions of an image, of y and x
  const int64_t at_once_;  // the positions of a line
  const int64_t line_;     // the elements of a line
  const int64_t lines_;    // of an image
  const GroupAffine<T> affine_;

 public:
  const int64_t parts;  // the number of parts of a unit

  explicit GroupPositions(const GroupNorm& norm)
      : norm(norm),
        groups(norm.groups),
        count(norm.x.sizes[0]),
        size(element_count(norm.x) / (count * groups)),
        channels_(norm.x.sizes[1]),
        positions_(size * groups / channels_),
        places_(loop_over(norm.y, norm.x, 2, norm.x.rank)),
        at_once_(places_.rank == 1 && places_.strides[1][0] == channels_
                     ? std::clamp<int64_t>(kBlock / channels_, 1, positions_)
                     : 1),
        line_(at_once_ * channels_),
        lines_((positions_ + at_once_ - 1) / at_once_),
        affine_(norm),
        parts(std::max<int64_t>(1, std::min(2 * size * groups / kGroupPart, lines_ / kLeastLines))) {}

  // Takes the means of some positions, in equal distances.
  void guess_centers(Scratch& own, int64_t unit, Moments<A>* moments) const {
    const T* const x = static_cast<const T*>(norm.x.data) + unit * norm.x.strides[0];
    const int64_t n = std::min(positions_, kGuessed), step = positions_ / n;
    const A share = A(1) / (n * (channels_ / groups));
    A* const sums = own.values;
    std::fill_n(sums, channels_, A(0));
    for (int64_t i = 0; i < n; ++i) {
      const T* const values = x + Position(places_, 2, i * step).offsets()[1];
#pragma omp simd
      for (int64_t channel = 0; channel < channels_; ++channel) {
        sums[channel] += widen(values[channel]) * share;
      }
    }
    for (int64_t group = 0; group < groups; ++group) {
      moments[group].center = 0;
    }
    for_each_element(channels_, [&](int64_t group, int64_t i) { moments[group].center += sums[i]; });
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
  static constexpr int kLines = 256;          // whose terms are added in the compute type
  static constexpr int64_t kLeastLines = 32;  // of a part, which has to fill some vectors of a line first
  static constexpr int64_t kGuessed = 16;

  // Calls `function` with the group and the number of each of the first n elements of a line, a multiple of channels.
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

  // Calls `line` with each line of a part. The last line of an image may be shorter.
  template <class Line>
  void for_each_line(int64_t unit, int64_t part, const Line& line) const {
    const int64_t begin = lines_ * part / parts * at_once_;
    const int64_t end = std::min(lines_ * (part + 1) / parts * at_once_, positions_);
    const T* const x = static_cast<const T*>(norm.x.data) + unit * norm.x.strides[0];
    T* const y = static_cast<T*>(norm.y.data) + unit * norm.y.strides[0];
    Position place(places_, 2, begin);
    for (int64_t at = begin; at < end; at += at_once_) {
      line(x + place.offsets()[1], y + place.offsets()[0], std::min(at_once_, end - at) * channels_);
      if (at + at_once_ < end) {
        place.advance(at_once_);
      }
    }
  }
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
