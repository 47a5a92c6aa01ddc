#include "kernels/softmax.h"

#include <algorithm>
#include <limits>

#include "core/activation.h"
#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/parallel.h"
#include "kernels/position.h"
#include "kernels/row_sum.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 8192;  // the minimum number of elements per thread

template <class T>
struct SoftmaxRows {
  using A = Compute<T>;

  const Softmax& softmax;
  const Loop& loop;  // operands: y, then the mask if present
  int64_t columns;

  void operator()(int64_t begin, int64_t end) const {
    Buffer<A> buffer(columns);
    const int64_t queries = softmax.is_causal ? softmax.y.sizes[softmax.y.rank - 2] : 0;
    for (Position position(loop, softmax.mask ? 2 : 1, begin); begin < end; ++begin, position.advance(1)) {
      const int64_t* offsets = position.offsets();
      T* y = static_cast<T*>(softmax.y.data) + offsets[0];
      A* s = result_block(y, 1, buffer.data());
      const int64_t visible = softmax.is_causal ? std::min(begin % queries + 1, columns) : columns;
      const A largest = load_row(y, softmax.mask ? offsets[1] : 0, visible, s);
      const A pivot = softmax.hidden_is_zero && largest == -std::numeric_limits<A>::infinity() ? A(0) : largest;
#pragma omp simd
      for (int64_t i = 0; i < visible; ++i) {
        s[i] = exp_of_negative(s[i] - pivot);
      }
      double sum;
      sum_row<1>(s, visible, [](const auto& x, auto* t) { t[0] = x; }, &sum);
      const A total = sum == 0 ? A(1) : static_cast<A>(sum);  // 0 only in a hidden row
#pragma omp simd
      for (int64_t i = 0; i < visible; ++i) {
        s[i] /= total;
      }
      std::fill(s + visible, s + columns, A(0));
      store_block(s, y, 1, columns);
    }
  }

  // Writes y + mask of the first `visible` columns of a row to s, and returns the maximum.
  A load_row(const T* y, int64_t mask_offset, int64_t visible, A* s) const {
    alignas(64) A y_block[kBlock], mask_block[kBlock];
    A largest = -std::numeric_limits<A>::infinity();
    for (int64_t start = 0; start < visible; start += kBlock) {
      const int64_t n = std::min(kBlock, visible - start);
      const A* values = load_block(y + start, 1, n, y_block);
      A* target = s + start;
      if (softmax.mask) {
        const int64_t stride = softmax.mask->strides[softmax.mask->rank - 1];
        const T* mask = static_cast<const T*>(softmax.mask->data) + mask_offset + start * stride;
        const A* addend = load_block(mask, stride, n, mask_block);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          target[i] = values[i] + addend[i];
        }
      } else if (values != target) {
        std::copy_n(values, n, target);
      }
#pragma omp simd reduction(max : largest)
      for (int64_t i = 0; i < n; ++i) {
        largest = target[i] > largest ? target[i] : largest;
      }
    }
    return largest;
  }
};

}  // namespace

void softmax(CpuHost& host, const Softmax& softmax) {
  if (element_count(softmax.y) == 0) {
    return;
  }
  const In operands[2] = {softmax.y, softmax.mask ? *softmax.mask : In(softmax.y)};
  const Loop loop = row_loop(operands, softmax.mask ? 2 : 1);
  const int64_t columns = softmax.y.sizes[softmax.y.rank - 1];
  dispatch(softmax.y.dtype, [&]<class T>(T) {
    parallel(host, loop.count(), std::max<int64_t>(1, kGrain / columns), SoftmaxRows<T>{softmax, loop, columns});
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
