#include "kernels/group_norm.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/moments.h"
#include "kernels/pointwise.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // the minimum number of elements per thread

// A row is one group of one image. It has any strides in x. In y, it is dense or channels last.
template <class T>
struct GroupRows {
  using A = Compute<T>;

  const GroupNorm& norm;
  const Loop& rows;    // operands: y, x
  const Loop& within;  // the loop over a row; the same operands
  int64_t elements;    // the number of elements in a row
  int64_t channels;    // the number of channels in a row
  int64_t span;        // the number of elements in a channel
  BlockFunction<A> activate;

  void operator()(int64_t begin, int64_t end) const {
    Buffer<A> row(elements);
    for (Position position(rows, 2, begin); begin < end; ++begin, position.advance(1)) {
      const int64_t* offsets = position.offsets();
      const A* s = load_row(static_cast<const T*>(norm.x.data) + offsets[1], row.data());
      const Moments<A> own = moments(s, elements, norm.eps, true);
      const int64_t first_channel = begin % norm.groups * channels;
      T* const y = static_cast<T*>(norm.y.data) + offsets[0];
      if (is_channels_last(norm.y)) {
        store_positions(s, own, first_channel, y);
      } else {
        store_row(s, own, first_channel, y);
      }
    }
  }

  // Returns the row in the compute type: x itself if it is dense and has the compute type, otherwise the buffer, which
  // is filled.
  const A* load_row(const T* x, A* buffer) const {
    const int64_t stride = within.strides[1][within.rank - 1];
    if (within.rank == 1) {
      return load_block(x, stride, elements, buffer);
    }
    Position position(within, 2, 0);
    for (int64_t done = 0; done < elements;) {
      const int64_t n = position.left();
      const A* run = load_block(x + position.offsets()[1], stride, n, buffer + done);
      if (run != buffer + done) {
        std::copy_n(run, n, buffer + done);
      }
      position.advance(n);
      done += n;
    }
    return buffer;
  }

  static A at(const std::optional<In>& vector, int64_t channel, A absent) {
    return vector ? widen(static_cast<const T*>(vector->data)[channel * vector->strides[0]]) : absent;
  }

  // Computes n results from elements of a row, each with a scale and a shift of its own.
  void normalise(const A* s, const Moments<A>& moments, const A* scale, const A* shift, A* values, int64_t n) const {
    const auto [center, correction, factor] = moments;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      values[i] = (s[i] - center - correction) * scale[i] + shift[i];
    }
    if (norm.activation != Activation::none) {
      const A* in_place = values;
      activate(&norm.activation, values, &in_place, n);
    }
  }

  // Stores a row of which the channels of a position are adjacent in s and y, some positions at a time.
  void store_positions(const A* s, const Moments<A>& moments, int64_t first_channel, T* y) const {
    const int64_t most = std::max<int64_t>(kBlock / channels, 1) * channels;
    Buffer<A> buffers(3 * most);
    A *const scale = buffers.data(), *const shift = scale + most, *const values = shift + most;
    for (int64_t i = 0; i < most; ++i) {
      scale[i] = moments.factor * at(norm.weight, first_channel + i % channels, A(1));
      shift[i] = at(norm.bias, first_channel + i % channels, A(0));
    }
    for (int64_t start = 0; start < elements; start += most) {
      const int64_t n = std::min(most, elements - start);
      normalise(s + start, moments, scale, shift, values, n);
      for (int64_t i = 0; i < n; i += channels, y += norm.x.sizes[1]) {
        std::transform(values + i, values + i + channels, y, [](A value) { return narrow<T>(value); });
      }
    }
  }

  void store_row(const A* s, const Moments<A>& moments, int64_t first_channel, T* y) const {
    alignas(64) A block[kBlock], scale[kBlock], shift[kBlock];
    int64_t filled = -1;  // the channel of all elements of `scale` and `shift`, if they share one
    for (int64_t start = 0; start < elements; start += kBlock) {
      const int64_t n = std::min(kBlock, elements - start);
      const int64_t first = start / span, last = (start + n - 1) / span;
      if (first != last || first != filled) {
        for (int64_t channel = first, i = 0; channel <= last; ++channel) {
          // A channel that ends beyond the block fills the rest of the block, because the next block may belong to it
          // too.
          const int64_t stop = std::min((channel + 1) * span - start, kBlock);
          std::fill(scale + i, scale + stop, moments.factor * at(norm.weight, first_channel + channel, A(1)));
          std::fill(shift + i, shift + stop, at(norm.bias, first_channel + channel, A(0)));
          i = stop;
        }
        filled = first == last ? first : -1;
      }
      A* values = result_block(y + start, 1, block);
      normalise(s + start, moments, scale, shift, values, n);
      store_block(values, y + start, 1, n);
    }
  }
};

// Returns the loop over the dims [begin, end) of the tensors.
Loop loop_over(const Spec& y, const Spec& x, int begin, int end) {
  const auto dims = [&](const Spec& tensor) {
    return In{nullptr, tensor.dtype, end - begin, tensor.sizes + begin, tensor.strides + begin};
  };
  const In result = dims(y);
  return element_loop({nullptr, result.dtype, result.rank, result.sizes, result.strides}, {dims(x)});
}

}  // namespace

void group_norm(CpuHost& host, const GroupNorm& norm) {
  if (element_count(norm.x) == 0) {
    return;
  }
  const Spec x = grouped(norm.x, norm.groups), y = grouped(norm.y, norm.groups);
  const Loop rows = loop_over(y, x, 0, 2), within = loop_over(y, x, 2, y.rank);
  dispatch(norm.x.dtype, [&]<class T>(T) {
    BlockFunction<Compute<T>> activate = nullptr;
    dispatch(norm.activation, [&]<class Act>(Act) { activate = &activated_block<Act, Compute<T>>; });
    const int64_t elements = within.count();
    GroupRows<T> groups{norm, rows, within, elements, x.sizes[2], elements / x.sizes[2], activate};
    host.parallel_for(
        rows.count(), std::max<int64_t>(1, kGrain / elements),
        [](int64_t begin, int64_t end, void* context) { (*static_cast<const GroupRows<T>*>(context))(begin, end); },
        &groups);
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
