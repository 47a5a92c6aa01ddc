#include "kernels/convert.h"

#include <algorithm>

#include "core/cuda.cuh"
#include "core/layout.h"

namespace fuseconv::cuda {
namespace {

constexpr int kThreads = 256;

template <class From, class To>
__global__ void __launch_bounds__(kThreads) convert_kernel(const From* x, To* y, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    y[i] = narrow<To>(static_cast<Compute<To>>(widen(x[i])));
  }
}

}  // namespace

void convert(CudaHost& host, In x, Out y) {
  const int64_t count = element_count(y);
  if (count == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, 1 << 20));
  dispatch(x.dtype, [&]<class From>(From) {
    dispatch(y.dtype, [&]<class To>(To) {
      convert_kernel<<<blocks, kThreads, 0, stream_of(host)>>>(static_cast<const From*>(x.data),
                                                               static_cast<To*>(y.data), count);
    });
  });
  check_launch("the conversion of a tensor to another dtype");
}

}  // namespace fuseconv::cuda
