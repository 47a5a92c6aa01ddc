#include "kernels/pointwise.h"

#include <algorithm>

#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

// The minimum number of elements per thread. Computing them must take longer than waking the thread.
constexpr int64_t kGrain = 16384;

template <class T>
struct Walk {
  const Loop& loop;
  T* y;
  const Operand<Compute<T>>* x;
  int inputs;
  BlockFunction<Compute<T>> function;
  const void* formula;

  // Computes elements [begin, end) of the index space, in order.
  void operator()(int64_t begin, int64_t end) const {
    Position position(loop, inputs + 1, begin);
    while (begin < end) {
      const int64_t n = std::min(end - begin, position.left());
      run(position.offsets(), n);
      position.advance(n);
      begin += n;
    }
  }

  // Computes a run of n elements along the innermost axis.
  void run(const int64_t* offsets, int64_t n) const {
    alignas(64) Compute<T> buffers[kMaxOperands][kBlock];
    const int64_t stride = loop.strides[0][loop.rank - 1];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t size = std::min(kBlock, n - done);
      const Compute<T>* operands[kMaxOperands];
      for (int i = 0; i < inputs; ++i) {
        const int64_t input_stride = loop.strides[i + 1][loop.rank - 1];
        const int64_t offset = offsets[i + 1] + done * input_stride;
        if (x[i].fill != nullptr) {
          x[i].fill(x[i].data, offset, input_stride, buffers[i + 1], size);
          operands[i] = buffers[i + 1];
        } else {
          operands[i] = load_block(static_cast<const T*>(x[i].data) + offset, input_stride, size, buffers[i + 1]);
        }
      }
      T* target = y + offsets[0] + done * stride;
      Compute<T>* values = result_block(target, stride, buffers[0]);
      function(formula, values, operands, size);
      store_block(values, target, stride, size);
    }
  }
};

}  // namespace

template <class T>
void run_pointwise(CpuHost& host, const Loop& loop, void* y, const Operand<Compute<T>>* x, int inputs,
                   BlockFunction<Compute<T>> function, const void* formula) {
  Walk<T> walk{loop, static_cast<T*>(y), x, inputs, function, formula};
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
