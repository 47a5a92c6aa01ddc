#include "kernels/norm.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/moments.h"
#include "kernels/norm_panels.h"
#include "kernels/parallel.h"
#include "kernels/pointwise.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // the minimum number of elements per thread

// The number of elements of the rows that are computed at once. They must stay in the L1 cache from one step to the
// next.
constexpr int64_t kBatch = 2048;

template <class T>
struct Rows {
  using A = Compute<T>;

  const Norm& norm;
  BlockFunction<A> activate;
  const NormRows rows{norm};
  const int64_t columns = norm.x.sizes[norm.x.rank - 1];

  // Computes rows [begin, end). Each step is done for all rows of a batch before the next one. Therefore, a converted
  // row is in the cache before it is read again, and short rows do not wait for their own moments.
  void operator()(int64_t begin, int64_t end) const {
    const int64_t batch = std::clamp<int64_t>(kBatch / columns, 1, kMomentRows);
    Buffer<A> buffer(batch * columns), weight(columns), bias(columns);
    const A* scale = vector(norm.weight, A(1), weight.data());
    const A* shift = vector(norm.bias, A(0), bias.data());
    const A* s[kMomentRows];
    T* y[kMomentRows];
    Moments<A> moments[kMomentRows];
    Position position(rows.loop, rows.count, begin);
    for (int64_t n; begin < end; begin += n) {
      n = std::min(batch, end - begin);
      for (int64_t r = 0; r < n; ++r, position.advance(1)) {
        const int64_t* offsets = position.offsets();
        s[r] = load_row(offsets, buffer.data() + r * columns);
        y[r] = static_cast<T*>(norm.y.data) + offsets[0];
      }
      find_moments(s, n, columns, norm.eps, norm.centred, moments);
      for (int64_t r = 0; r < n; ++r) {
        store_row(s[r], moments[r], scale, shift, y[r]);
      }
    }
  }

  // Returns the weight or bias in the compute type, or `absent` in its place if the tensor is missing.
  const A* vector(const std::optional<In>& tensor, A absent, A* buffer) const {
    if (tensor) {
      return load_block(static_cast<const T*>(tensor->data), column_stride(*tensor), columns, buffer);
    }
    std::fill_n(buffer, columns, absent);
    return buffer;
  }

  // Returns s of one row in the compute type. Returns the row of x itself if it needs neither an addition nor a
  // conversion. Otherwise computes s in the memory of the sum or in the buffer, and returns that memory.
  const A* load_row(const int64_t* offsets, A* buffer) const {
    const T* x = static_cast<const T*>(norm.x.data) + offsets[1];
    const int64_t x_stride = column_stride(norm.x);
    if (!norm.residual) {
      return load_block(x, x_stride, columns, buffer);
    }
    const T* residual = static_cast<const T*>(norm.residual->data) + offsets[2];
    const int64_t residual_stride = column_stride(*norm.residual);
    T* out = norm.sum ? static_cast<T*>(norm.sum->data) + offsets[3] : nullptr;
    const int64_t out_stride = norm.sum ? column_stride(*norm.sum) : 0;
    A* s = norm.sum ? result_block(out, out_stride, buffer) : buffer;
    alignas(64) A x_block[kBlock], residual_block[kBlock];
    for (int64_t start = 0; start < columns; start += kBlock) {
      const int64_t n = std::min(kBlock, columns - start);
      A* target = s + start;
      const A* a = load_block(x + start * x_stride, x_stride, n, x_block);
      const A* b = load_block(residual + start * residual_stride, residual_stride, n, residual_block);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        target[i] = a[i] + b[i];
      }
      if (norm.sum) {
        store_block(target, out + start * out_stride, out_stride, n);
      }
    }
    return s;
  }

  void store_row(const A* s, const Moments<A>& moments, const A* scale, const A* shift, T* y) const {
    const auto [center, correction, factor] = moments;
    const int64_t stride = column_stride(norm.y);
    alignas(64) A block[kBlock];
    for (int64_t start = 0; start < columns; start += kBlock) {
      const int64_t n = std::min(kBlock, columns - start);
      A* values = result_block(y + start * stride, stride, block);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        values[i] = (s[start + i] - center - correction) * factor * scale[start + i] + shift[start + i];
      }
      if (norm.activation != Activation::none) {
        const A* in_place = values;
        activate(&norm.activation, values, &in_place, n);
      }
      store_block(values, y + start * stride, stride, n);
    }
  }
};

}  // namespace

void norm(CpuHost& host, const Norm& norm) {
  if (element_count(norm.x) == 0) {
    return;
  }
  const NormRows rows(norm);
  const int axis = panel_axis(rows);
  const int64_t grain = std::max<int64_t>(1, kGrain / norm.x.sizes[norm.x.rank - 1]);
  dispatch(norm.x.dtype, [&]<class T>(T) {
    BlockFunction<Compute<T>> activate = nullptr;
    dispatch(norm.activation, [&]<class Act>(Act) { activate = &activated_block<Act, Compute<T>>; });
    if (axis < 0) {
      parallel(host, rows.loop.count(), grain, Rows<T>{norm, activate});
    } else {
      const Panels<T> panels(norm, rows, axis);
      parallel(host, panels.count(), std::max<int64_t>(1, grain / kPanelRows), [&](int64_t begin, int64_t end) {
        panels.each(begin, end, [&](const Norm& panel) { Rows<T>{panel, activate}(0, panel.x.sizes[0]); });
      });
    }
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
