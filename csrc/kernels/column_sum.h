// Computes d = formula(x...) elementwise over [..., columns], and the sum of d over all dims but the last, in one pass.
// Compiled once per instruction set.
#pragma once

#if defined(__CUDACC__)
#include "kernels/column_sum.cuh"
#elif defined(FUSECONV_KERNELS)
#include <algorithm>

#include "kernels/block.h"
#include "kernels/matrix_copy.h"
#include "kernels/parallel.h"
#include "kernels/pointwise.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// Processes blocks of columns, each over all rows. At most kRows values are added to one partial sum in the compute
// type; the totals are in f64.
template <class T>
struct ColumnSum {
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kLoaded = 16;  // rows that are loaded at once
  using A = Compute<T>;

  const Loop& loop;  // the loop over rows; operands: d, then the inputs
  const In* operands;
  int count;
  int64_t columns;
  T* sum;
  BlockFunction<A> function;
  const void* formula;

  void operator()(int64_t first_block, int64_t last_block) const {
    for (int64_t block = first_block; block < last_block; ++block) {
      const int64_t start = block * kBlock;
      sum_columns(start, std::min(kBlock, columns - start));
    }
  }

  void sum_columns(int64_t start, int64_t n) const {
    alignas(64) A buffers[kMaxOperands][kLoaded * kBlock];
    alignas(64) T moved[kLoaded * kBlock];
    alignas(64) A partial[kBlock] = {};
    double total[kBlock] = {};
    const A* loaded[kMaxOperands][kLoaded];
    const int64_t rows = loop.count();
    int64_t pending = 0;
    Position position(loop, count, 0);
    for (int64_t row = 0, size; row < rows; row += size) {
      size = std::min(kLoaded, position.left());
      for (int i = 1; i < count; ++i) {
        const int64_t stride = column_stride(i);
        T* const source = static_cast<T*>(const_cast<void*>(operands[i].data)) + position.offsets()[i] + start * stride;
        load_rows<T>({source, row_stride(i), stride}, size, n, moved, buffers[i], loaded[i]);
      }
      for (int64_t r = 0; r < size; ++r) {
        const A* inputs[kMaxOperands];
        for (int i = 1; i < count; ++i) {
          inputs[i - 1] = loaded[i][r];
        }
        T* const first = static_cast<T*>(const_cast<void*>(operands[0].data)) + position.offsets()[0] + start;
        T* const target = first + r * row_stride(0);
        A* values = result_block(target, 1, buffers[0]);
        function(formula, values, inputs, n);
        store_block(values, target, 1, n);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          partial[i] += values[i];
        }
        if (++pending == kRows || row + r + 1 == rows) {
          for (int64_t i = 0; i < n; ++i) {
            total[i] += partial[i];
            partial[i] = 0;
          }
          pending = 0;
        }
      }
      position.advance(size);
    }
    for (int64_t i = 0; i < n; ++i) {
      sum[start + i] = narrow<T>(static_cast<A>(total[i]));
    }
  }

  int64_t row_stride(int operand) const { return loop.strides[operand][loop.rank - 1]; }
  int64_t column_stride(int operand) const { return operands[operand].strides[operands[operand].rank - 1]; }
};

// d is contiguous; sum has the shape [columns].
template <class Formula, class... Inputs>
void pointwise_and_column_sum(CpuHost& host, const Formula& formula, Out d, Out sum, Inputs... inputs) {
  const In operands[] = {d, inputs...};
  constexpr int kCount = 1 + sizeof...(Inputs);
  const Loop loop = row_loop(operands, kCount);
  const int64_t columns = sum.sizes[0];
  dispatch(d.dtype, [&]<class T>(T) {
    parallel(host, (columns + kBlock - 1) / kBlock, 1,
             ColumnSum<T>{loop, operands, kCount, columns, static_cast<T*>(sum.data),
                          &block<Formula, Compute<T>, sizeof...(Inputs)>, &formula});
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
#endif
