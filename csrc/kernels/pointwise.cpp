#include "kernels/pointwise.h"

#include <algorithm>

#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

// The minimum number of elements per thread. Computing them must take longer than waking the thread.
constexpr int64_t kGrain = 16384;

// Returns whether an operand of a loop is contiguous: whether its elements are adjacent in the order of the loop.
bool is_contiguous(const Loop& loop, int operand) {
  int64_t stride = 1;
  for (int axis = loop.rank - 1; axis >= 0; stride *= loop.sizes[axis--]) {
    if (loop.strides[operand][axis] != stride) {
      return false;
    }
  }
  return true;
}

template <class T>
class Walk {
 public:
  Walk(const Loop& loop, T* y, const Operand<Compute<T>>* x, int inputs, BlockFunction<Compute<T>> function,
       const void* formula)
      : loop_(loop), y_(y), x_(x), inputs_(inputs), function_(function), formula_(formula) {
    for (int operand = 0; operand <= inputs; ++operand) {
      strides_[operand] = loop.strides[operand][loop.rank - 1];
      is_contiguous_[operand] = is_contiguous(loop, operand) && (operand == 0 || x[operand - 1].fill == nullptr);
    }
  }

  // Computes elements [begin, end) of the index space, in order.
  void operator()(int64_t begin, int64_t end) const {
    Position position(loop_, inputs_ + 1, begin);
    while (begin < end) {
      const int64_t left = position.left(), rest = end - begin;
      if (left >= std::min(kBlock, rest)) {
        const int64_t n = std::min(left, rest);
        run(position.offsets(), n);
        position.advance(n);
        begin += n;
      } else {
        const int64_t n = std::min(kBlock, rest);
        runs(position, begin, n);
        begin += n;
      }
    }
  }

 private:
  // Computes a run of n elements along the innermost axis.
  void run(const int64_t* offsets, int64_t n) const {
    alignas(64) Compute<T> buffers[kMaxOperands][kBlock];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t size = std::min(kBlock, n - done);
      const Compute<T>* operands[kMaxOperands];
      for (int i = 0; i < inputs_; ++i) {
        const int64_t stride = strides_[i + 1], offset = offsets[i + 1] + done * stride;
        if (x_[i].fill != nullptr) {
          x_[i].fill(x_[i].data, offset, stride, buffers[i + 1], size);
          operands[i] = buffers[i + 1];
        } else {
          operands[i] = load_block(static_cast<const T*>(x_[i].data) + offset, stride, size, buffers[i + 1]);
        }
      }
      T* target = y_ + offsets[0] + done * strides_[0];
      Compute<T>* values = result_block(target, strides_[0], buffers[0]);
      function_(formula_, values, operands, size);
      store_block(values, target, strides_[0], size);
    }
  }

  // Computes the n elements from `begin` on, at most a block, which are several short runs, in one call of the
  // function. Advances the position by n steps.
  void runs(Position& position, int64_t begin, int64_t n) const {
    alignas(64) Compute<T> buffers[kMaxOperands][kBlock];
    const Position first = position;
    for_each_run(position, n, [&](const int64_t* offsets, int64_t done, int64_t size) {
      for (int i = 0; i < inputs_; ++i) {
        if (x_[i].fill != nullptr) {
          x_[i].fill(x_[i].data, offsets[i + 1], strides_[i + 1], buffers[i + 1] + done, size);
        } else if (!is_contiguous_[i + 1]) {
          copy_block(static_cast<const T*>(x_[i].data) + offsets[i + 1], strides_[i + 1], size, buffers[i + 1] + done);
        }
      }
    });
    const Compute<T>* operands[kMaxOperands];
    for (int i = 0; i < inputs_; ++i) {
      const T* const x = static_cast<const T*>(x_[i].data) + begin;
      operands[i] = is_contiguous_[i + 1] ? load_block(x, 1, n, buffers[i + 1]) : buffers[i + 1];
    }
    if (is_contiguous_[0]) {
      Compute<T>* const values = result_block(y_ + begin, 1, buffers[0]);
      function_(formula_, values, operands, n);
      store_block(values, y_ + begin, 1, n);
      return;
    }
    function_(formula_, buffers[0], operands, n);
    Position at = first;
    for_each_run(at, n, [&](const int64_t* offsets, int64_t done, int64_t size) {
      for (int64_t i = 0; i < size; ++i) {
        y_[offsets[0] + i * strides_[0]] = narrow<T>(buffers[0][done + i]);
      }
    });
  }

  template <class Function>
  static void for_each_run(Position& position, int64_t n, const Function& function) {
    for (int64_t done = 0; done < n;) {
      const int64_t size = std::min(n - done, position.left());
      function(position.offsets(), done, size);
      position.advance(size);
      done += size;
    }
  }

  const Loop& loop_;
  T* y_;
  const Operand<Compute<T>>* x_;
  int inputs_;
  BlockFunction<Compute<T>> function_;
  const void* formula_;
  int64_t strides_[kMaxOperands];  // of the innermost axis
  bool is_contiguous_[kMaxOperands];
};

}  // namespace

template <class T>
void run_pointwise(CpuHost& host, const Loop& loop, void* y, const Operand<Compute<T>>* x, int inputs,
                   BlockFunction<Compute<T>> function, const void* formula) {
  Walk<T> walk(loop, static_cast<T*>(y), x, inputs, function, formula);
  host.parallel_for(
      loop.count(), kGrain,
      [](int64_t begin, int64_t end, void* context) { (*static_cast<const Walk<T>*>(context))(begin, end); }, &walk);
}

template void run_pointwise<float>(CpuHost&, const Loop&, void*, const Operand<float>*, int, BlockFunction<float>,
                                   const void*);
template void run_pointwise<double>(CpuHost&, const Loop&, void*, const Operand<double>*, int, BlockFunction<double>,
                                    const void*);
template void run_pointwise<f16>(CpuHost&, const Loop&, void*, const Operand<float>*, int, BlockFunction<float>,
                                 const void*);
template void run_pointwise<bf16>(CpuHost&, const Loop&, void*, const Operand<float>*, int, BlockFunction<float>,
                                  const void*);

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
