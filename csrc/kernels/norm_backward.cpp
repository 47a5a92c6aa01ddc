#include "kernels/norm_backward.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/matrix_copy.h"
#include "kernels/moments.h"
#include "kernels/parallel.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kPiece = 65536;  // the minimum number of row elements that one thread adds
constexpr int64_t kMaxPieces = 64;
constexpr int64_t kRowsInOneSum = 32;  // at most this many rows are added in the compute type; the totals are in f64

// The number of elements of the rows that are computed at once. They must stay in the L1 cache from one step to the
// next.
constexpr int64_t kBatch = 2048;

template <class T>
struct GradientRows {
  using A = Compute<T>;

  const NormGradients& norm;
  const Loop& loop;  // operands: grad_x, grad, x, then grad_sum if present
  int64_t rows;
  int64_t columns;
  int64_t pieces;
  double* partial;  // [pieces, 2, columns]: sums for the weight and for the bias

  // Processes the pieces [begin, end) of the rows.
  void operator()(int64_t begin, int64_t end) const {
    Scratch own(batch(), columns);
    const T* const weight = norm.weight ? static_cast<const T*>(norm.weight->data) : nullptr;
    std::fill_n(own.ones.data(), columns, A(1));
    const A* const scale =
        weight ? load_block(weight, norm.weight->strides[0], columns, own.ones.data()) : own.ones.data();
    A* const sums = own.sums.data();
    for (int64_t piece = begin; piece < end; ++piece) {
      double* totals = partial + piece * 2 * columns;
      std::fill_n(totals, 2 * columns, 0.0);
      std::fill_n(sums, 2 * columns, A(0));
      int64_t pending = 0;
      const auto flush = [&] {
        for (int64_t i = 0; i < 2 * columns; ++i) {
          totals[i] += sums[i];
          sums[i] = 0;
        }
        pending = 0;
      };
      const int64_t first = rows * piece / pieces, last = rows * (piece + 1) / pieces;
      Position position(loop, norm.grad_sum ? 4 : 3, first);
      for (int64_t row = first, n; row < last; row += n) {
        n = std::min({batch(), last - row, position.left()});
        if (pending + n > kRowsInOneSum) {
          flush();
        }
        compute(own, position.offsets(), n, scale);
        position.advance(n);
        pending += n;
      }
      flush();
    }
  }

  // Adds the sums of all pieces for the columns [begin, end).
  void sum_pieces(int64_t begin, int64_t end) const {
    for (int which = 0; which < 2; ++which) {
      const std::optional<Out>& result = which == 0 ? norm.grad_weight : norm.grad_bias;
      for (int64_t column = begin; result && column < end; ++column) {
        double total = 0;
        for (int64_t piece = 0; piece < pieces; ++piece) {
          total += partial[(piece * 2 + which) * columns + column];
        }
        static_cast<T*>(result->data)[column] = narrow<T>(static_cast<A>(total));
      }
    }
  }

 private:
  // Memory for several rows of each kind, and for the sums of the rows for the weight and for the bias.
  struct Scratch {
    Scratch(int64_t rows, int64_t columns)
        : moved(rows * columns),
          x(rows * columns),
          grad(rows * columns),
          added(rows * columns),
          ones(columns),
          sums(2 * columns) {}
    Buffer<T> moved;
    Buffer<A> x, grad, added, ones, sums;
  };

  int64_t batch() const {
    const bool is_transposed = matrix(1, norm.grad).is_transposed() || matrix(2, norm.x).is_transposed() ||
                               (norm.grad_sum && matrix(3, *norm.grad_sum).is_transposed());
    return is_transposed ? kMomentRows : std::clamp<int64_t>(kBatch / columns, 1, kMomentRows);
  }

  // The memory of the rows along the innermost axis of the loop.
  Matrix<T> matrix(int operand, In tensor, int64_t offset = 0) const {
    T* const data = static_cast<T*>(const_cast<void*>(tensor.data)) + offset;
    return {data, row_stride(operand), tensor.strides[tensor.rank - 1]};
  }

  // Computes `count` rows along the innermost axis of the loop. Each step is done for all rows before the next one, so
  // that short rows do not wait for their own sums.
  void compute(Scratch& own, const int64_t* offsets, int64_t count, const A* scale) const {
    const A *grad[kMomentRows], *x[kMomentRows], *added[kMomentRows];
    load(1, norm.grad, offsets, count, own.moved.data(), own.grad.data(), grad);
    load(2, norm.x, offsets, count, own.moved.data(), own.x.data(), x);
    Moments<A> moments[kMomentRows];
    find_moments(x, count, columns, norm.eps, norm.centred, moments);
    A along[kMomentRows], level[kMomentRows];
    for (int64_t r = 0; r < count; ++r) {
      double totals[2];
      add_row(own.sums.data(), x[r], grad[r], scale, moments[r], totals);
      along[r] = static_cast<A>(totals[0] / columns);
      level[r] = norm.centred ? static_cast<A>(totals[1] / columns) : A(0);
    }
    if (norm.grad_sum) {
      load(3, *norm.grad_sum, offsets, count, own.moved.data(), own.added.data(), added);
    }
    for (int64_t r = 0; r < count; ++r) {
      T* const y = static_cast<T*>(norm.grad_x.data) + offsets[0] + r * row_stride(0);
      store_row(x[r], grad[r], scale, moments[r], along[r], level[r], norm.grad_sum ? added[r] : nullptr, y);
    }
  }

  // Adds a row to the sums for the weight and for the bias, and finds the sums of h * n and of h.
  void add_row(A* sums, const A* x, const A* grad, const A* scale, const Moments<A>& moments, double* totals) const {
    const auto [center, correction, factor] = moments;
    A *const weight_sum = sums, *const bias_sum = sums + columns;
    alignas(64) A products[kBlock], h[kBlock];
    totals[0] = totals[1] = 0;
    for (int64_t start = 0; start < columns; start += kBlock) {
      const int64_t count = std::min(kBlock, columns - start);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const A g = grad[start + i], n = (x[start + i] - center - correction) * factor;
        weight_sum[start + i] += g * n;
        bias_sum[start + i] += g;
        h[i] = g * scale[start + i];
        products[i] = h[i] * n;
      }
      totals[0] += sum(products, count);
      totals[1] += norm.centred ? sum(h, count) : 0;
    }
  }

  void store_row(const A* x, const A* grad, const A* scale, const Moments<A>& moments, A along, A level, const A* added,
                 T* y) const {
    const auto [center, correction, factor] = moments;
    alignas(64) A block[kBlock];
    for (int64_t start = 0; start < columns; start += kBlock) {
      const int64_t count = std::min(kBlock, columns - start);
      A* const result = result_block(y + start, 1, block);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const A n = (x[start + i] - center - correction) * factor;
        result[i] = (grad[start + i] * scale[start + i] - level - n * along) * factor;
      }
      if (added != nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          result[i] += added[start + i];
        }
      }
      store_block(result, y + start, 1, count);
    }
  }

  int64_t row_stride(int operand) const { return loop.strides[operand][loop.rank - 1]; }

  void load(int operand, In tensor, const int64_t* offsets, int64_t count, T* moved, A* buffer, const A** found) const {
    load_rows<T>(matrix(operand, tensor, offsets[operand]), count, columns, moved, buffer, found);
  }

  static double sum(const A* values, int64_t count) {
    double total;
    sum_row<1>(values, count, [](const auto& x, auto* t) { t[0] = x; }, &total);
    return total;
  }
};

}  // namespace

void norm_backward(CpuHost& host, const NormGradients& norm) {
  const int64_t columns = norm.x.sizes[norm.x.rank - 1];
  if (columns == 0) {
    return;
  }
  const int64_t rows = element_count(norm.x) / columns;
  In operands[kMaxOperands] = {norm.grad_x, norm.grad, norm.x};
  if (norm.grad_sum) {
    operands[3] = *norm.grad_sum;
  }
  const Loop loop = row_loop(operands, norm.grad_sum ? 4 : 3);
  dispatch(norm.x.dtype, [&]<class T>(T) {
    const int64_t pieces = std::min({rows, kMaxPieces, rows * columns / kPiece + 1});
    auto* partial = static_cast<double*>(host.scratch(std::max<int64_t>(pieces, 1) * 2 * columns * sizeof(double)));
    const GradientRows<T> gradients{norm, loop, rows, columns, pieces, partial};
    parallel(host, pieces, 1, gradients);
    parallel(host, columns, kPiece / kMaxPieces, [&](int64_t begin, int64_t end) { gradients.sum_pieces(begin, end); });
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
