#include "kernels/pointwise.h"

#include <algorithm>

#include "kernels/parallel.h"
#include "kernels/pointwise_tiles.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

// The minimum number of elements per thread. Computing them must take longer than waking the thread.
constexpr int64_t kGrain = 16384;

// A run along the innermost axis is short if it has fewer elements.
constexpr int64_t kShort = 64;

// Returns whether the elements of an operand are adjacent in the order of the loop.
bool is_in_order(const Loop& loop, int operand) {
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
      is_in_order_[operand] = is_in_order(loop, operand) && (operand == 0 || x[operand - 1].fill == nullptr);
    }
  }

  // Computes elements [begin, end) of the index space, in order.
  void operator()(int64_t begin, int64_t end) const {
    const bool has_short_runs = loop_.sizes[loop_.rank - 1] < kShort;
    Position position(loop_, inputs_ + 1, begin);
    while (begin < end) {
      const int64_t n = std::min(has_short_runs ? kBlock : position.left(), end - begin);
      if (has_short_runs) {
        runs(position, begin, n);
      } else {
        run(position.offsets(), n);
        position.advance(n);
      }
      begin += n;
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

  // Computes n elements, at most a block, from element `begin` on, which is at `position`. They are several short runs,
  // for which the function is called once. Advances the position by n steps.
  void runs(Position& position, int64_t begin, int64_t n) const {
    alignas(64) Compute<T> buffers[kMaxOperands][kBlock];
    Position at = position;
    for_each_run(position, n, [&](const int64_t* offsets, int64_t done, int64_t size) {
      for (int i = 0; i < inputs_; ++i) {
        if (x_[i].fill != nullptr) {
          x_[i].fill(x_[i].data, offsets[i + 1], strides_[i + 1], buffers[i + 1] + done, size);
        } else if (!is_in_order_[i + 1]) {
          copy_block(static_cast<const T*>(x_[i].data) + offsets[i + 1], strides_[i + 1], size, buffers[i + 1] + done);
        }
      }
    });
    const Compute<T>* operands[kMaxOperands];
    for (int i = 0; i < inputs_; ++i) {
      operands[i] = is_in_order_[i + 1] ? load_block(static_cast<const T*>(x_[i].data) + begin, 1, n, buffers[i + 1])
                                        : buffers[i + 1];
    }
    Compute<T>* const values = is_in_order_[0] ? result_block(y_ + begin, 1, buffers[0]) : buffers[0];
    function_(formula_, values, operands, n);
    if (is_in_order_[0]) {
      store_block(values, y_ + begin, 1, n);
      return;
    }
    for_each_run(at, n, [&](const int64_t* offsets, int64_t done, int64_t size) {
      for (int64_t i = 0; i < size; ++i) {
        y_[offsets[0] + i * strides_[0]] = narrow<T>(values[done + i]);
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
  bool is_in_order_[kMaxOperands];
};

}  // namespace

template <class T>
void run_pointwise(CpuHost& host, const Loop& loop, void* y, const Operand<Compute<T>>* x, int inputs,
                   BlockFunction<Compute<T>> function, const void* formula) {
  bool is_tensor[kMaxOperands] = {true};
  for (int i = 0; i < inputs; ++i) {
    is_tensor[i + 1] = x[i].fill == nullptr;
  }
  const int axis = dense_other_axis(loop, inputs + 1, is_tensor);
  if (axis < 0) {
    parallel(host, loop.count(), kGrain, Walk<T>(loop, static_cast<T*>(y), x, inputs, function, formula));
  } else {
    const Tiles<T> tiles(loop, axis, static_cast<T*>(y), x, inputs, function, formula);
    parallel(host, tiles.count(), kGrain / tiles.kTile, tiles);
  }
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
