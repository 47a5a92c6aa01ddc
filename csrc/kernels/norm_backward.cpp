#include "kernels/norm_backward.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/moments.h"
#include "kernels/parallel.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kPiece = 65536;  // the minimum number of row elements that one thread adds
constexpr int64_t kMaxPieces = 64;
constexpr int64_t kRowsInOneSum = 32;  // at most this many rows are added in the compute type; the totals are in f64

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
    Buffer<A> x_row(columns), grad_row(columns), scale_row(columns), n_row(columns), product_row(columns);
    Buffer<A> sums(2 * columns);
    const A* scale = nullptr;
    if (norm.weight) {
      scale = load_block(static_cast<const T*>(norm.weight->data), norm.weight->strides[0], columns, scale_row.data());
    }
    for (int64_t piece = begin; piece < end; ++piece) {
      A* weight_sum = sums.data();
      A* bias_sum = weight_sum + columns;
      double* totals = partial + piece * 2 * columns;
      std::fill_n(totals, 2 * columns, 0.0);
      std::fill_n(weight_sum, 2 * columns, A(0));
      const int64_t first = rows * piece / pieces, last = rows * (piece + 1) / pieces;
      Position position(loop, norm.grad_sum ? 4 : 3, first);
      for (int64_t row = first; row < last; ++row, position.advance(1)) {
        const int64_t* offsets = position.offsets();
        const A* grad = load(norm.grad, offsets[1], grad_row.data());
        const A* x = load(norm.x, offsets[2], x_row.data());
        Moments<A> moments;
        find_moments(&x, 1, columns, norm.eps, norm.centred, &moments);
        const auto [center, correction, factor] = moments;
        A* n = n_row.data();
        A* product = product_row.data();
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) {
          n[i] = (x[i] - center - correction) * factor;
          weight_sum[i] += grad[i] * n[i];
          bias_sum[i] += grad[i];
          const A h = scale ? grad[i] * scale[i] : grad[i];
          product[i] = h * n[i];
        }
        const A along = mean(product);
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) {
          product[i] = scale ? grad[i] * scale[i] : grad[i];
        }
        const A level = norm.centred ? mean(product) : A(0);
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) {
          product[i] = (product[i] - level - n[i] * along) * factor;
        }
        if (norm.grad_sum) {
          const A* added = load(*norm.grad_sum, offsets[3], n);
#pragma omp simd
          for (int64_t i = 0; i < columns; ++i) {
            product[i] += added[i];
          }
        }
        store(product, static_cast<T*>(norm.grad_x.data) + offsets[0]);
        if ((row - first) % kRowsInOneSum == kRowsInOneSum - 1 || row + 1 == last) {
          for (int64_t i = 0; i < 2 * columns; ++i) {
            totals[i] += weight_sum[i];
          }
          std::fill_n(weight_sum, 2 * columns, A(0));
        }
      }
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
  const A* load(In tensor, int64_t offset, A* buffer) const {
    return load_block(static_cast<const T*>(tensor.data) + offset, tensor.strides[tensor.rank - 1], columns, buffer);
  }

  // Stores a row of the contiguous result.
  void store(const A* values, T* y) const {
    if constexpr (std::is_same_v<T, A>) {
      std::copy_n(values, columns, y);
    } else {
      store_block(values, y, 1, columns);
    }
  }

  A mean(const A* values) const {
    double total;
    sum_row<1>(values, columns, [](const auto& x, auto* t) { t[0] = x; }, &total);
    return static_cast<A>(total / columns);
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
