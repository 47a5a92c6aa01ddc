// Group norm on the CPU by rows: a row is a group of an image. Compiled once per instruction set.
#pragma once

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/group_norm.h"
#include "kernels/moments.h"
#include "kernels/pointwise.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The least number of elements of a part of a unit with several parts. Twice as many fit in the L2 cache, and adding
// them takes longer than waking a thread.
inline constexpr int64_t kGroupPart = 32768;

// Returns the loop over the dims [begin, end) of two tensors.
inline Loop loop_over(const Spec& y, const Spec& x, int begin, int end) {
  const auto dims = [&](const Spec& tensor) {
    return In{nullptr, tensor.dtype, end - begin, tensor.sizes + begin, tensor.strides + begin};
  };
  const In result = dims(y);
  return element_loop({nullptr, result.dtype, result.rank, result.sizes, result.strides}, {dims(x)});
}

// The weight, the bias and the activation of a group norm.
template <class T>
class GroupAffine {
 public:
  using A = Compute<T>;

  explicit GroupAffine(const GroupNorm& norm) : norm_(norm), activate_(nullptr) {
    dispatch(norm.activation, [&]<class Act>(Act) { activate_ = &activated_block<Act, A>; });
  }

  A weight(int64_t channel) const { return at(norm_.weight, channel, A(1)); }
  A bias(int64_t channel) const { return at(norm_.bias, channel, A(0)); }

  void activate(A* values, int64_t n) const {
    if (norm_.activation != Activation::none) {
      const A* in_place = values;
      activate_(&norm_.activation, values, &in_place, n);
    }
  }

 private:
  static A at(const std::optional<In>& vector, int64_t channel, A absent) {
    return vector ? widen(static_cast<const T*>(vector->data)[channel * vector->strides[0]]) : absent;
  }

  const GroupNorm& norm_;
  BlockFunction<A> activate_;
};

// The units are rows. They have any strides in x, and are dense in y. A part is a run of a row's elements.
template <class T>
class GroupRows {
 public:
  using A = Compute<T>;

  // A part in the compute type. `begin` is its first element in the row, and `y` the row's place in y.
  struct Scratch {
    explicit Scratch(const GroupRows& rows) : buffer((rows.size + rows.parts - 1) / rows.parts) {}
    Buffer<A> buffer;
    int64_t unit = -1, part = -1, begin = 0, n = 0;
    const A* values = nullptr;
    T* y = nullptr;
  };

  const GroupNorm& norm;
  const int64_t groups = 1;          // of a unit
  const int64_t count, size, parts;  // of the units; of the elements of a group; of the parts of a unit

  explicit GroupRows(const GroupNorm& norm)
      : norm(norm),
        count(norm.x.sizes[0] * norm.groups),
        size(element_count(norm.x) / count),
        parts(std::max<int64_t>(1, size / kGroupPart)),
        x_(grouped(norm.x, norm.groups)),
        y_(grouped(norm.y, norm.groups)),
        rows_(loop_over(y_, x_, 0, 2)),
        within_(loop_over(y_, x_, 2, y_.rank)),
        affine_(norm) {}

  void guess_centers(Scratch& own, int64_t unit, Moments<A>* moments) const {
    load(own, unit, 0);
    const int64_t n = std::min(own.n, kBlock);
    double total;
    sum_row<1>(own.values, n, [](const auto& x, auto* t) { t[0] = x; }, &total);
    moments->center = static_cast<A>(total / n);
  }

  void add_distances(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments, double* totals) const {
    load(own, unit, part);
    sum_row<2>(own.values, own.n, distances_to(moments->center), totals);
  }

  void store(Scratch& own, int64_t unit, int64_t part, const Moments<A>* moments) const {
    load(own, unit, part);
    const auto [center, correction, factor] = *moments;
    const int64_t channels = x_.sizes[2], span = size / channels, first_channel = unit % norm.groups * channels;
    const auto scale_of = [&](int64_t channel) { return factor * affine_.weight(first_channel + channel); };
    const auto shift_of = [&](int64_t channel, A scale) {
      return affine_.bias(first_channel + channel) - correction * scale;
    };
    alignas(64) A block[kBlock], scales[kBlock], shifts[kBlock];
    for (int64_t start = 0, n; start < own.n; start += n) {
      const int64_t place = own.begin + start, channel = place / span, left = (channel + 1) * span - place;
      n = std::min({kBlock, own.n - start, span < kShort ? kBlock : left});
      const A* const s = own.values + start;
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
  static constexpr int64_t kShort = 64;  // elements of a channel, below which a block has several channels

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
    const int64_t stride = within_.strides[1][within_.rank - 1];
    A* const buffer = own.buffer.data();
    if (within_.rank == 1) {
      own.values = load_block(x + own.begin * stride, stride, own.n, buffer);
      return;
    }
    own.values = buffer;
    Position position(within_, 2, own.begin);
    for (int64_t done = 0; done < own.n;) {
      const int64_t n = std::min(position.left(), own.n - done);
      copy_block(x + position.offsets()[1], stride, n, buffer + done);
      position.advance(n);
      done += n;
    }
  }

  const Spec x_, y_;  // [N, groups, C / groups, ...]
  const Loop rows_, within_;
  const GroupAffine<T> affine_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
