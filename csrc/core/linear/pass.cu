// y[m, n] = act(y[m, n] + bias[n]) + residual[m, n], in place: 16 bytes a thread where rows allow it.
#include "core/linear/pass.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/linear/cuda_check.h"

namespace fuseconv::linear {
namespace {

template <class T>
struct Wide {
  using Type = float;
};
template <>
struct Wide<double> {
  using Type = double;
};

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Pack {
  T values[kVector];
};

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a thread: as many loads in flight

template <class Act, class T, int kVector>
__global__ void __launch_bounds__(kThreads) finish_kernel(T* y, const T* bias, const T* residual, int64_t rows,
                                                          int64_t columns, int64_t y_stride, int64_t residual_stride) {
  using W = typename Wide<T>::Type;
  using P = Pack<T, kVector>;
  const int64_t column = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVector;
  if (column >= columns) {
    return;
  }
  P b{};
  if (bias != nullptr) {
    b = *reinterpret_cast<const P*>(bias + column);
  }
  for (int64_t first = blockIdx.y * int64_t{kRows}; first < rows; first += gridDim.y * int64_t{kRows}) {
    P v[kRows], r[kRows] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < rows) {
        v[i] = *reinterpret_cast<const P*>(y + (first + i) * y_stride + column);
        if (residual != nullptr) {
          r[i] = *reinterpret_cast<const P*>(residual + (first + i) * residual_stride + column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < rows) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          // An absent addend is not 0: -0 + 0 is 0.
          W x = W(v[i].values[j]);
          x = bias != nullptr ? x + W(b.values[j]) : x;
          x = Act{}(x);
          v[i].values[j] = T(residual != nullptr ? x + W(r[i].values[j]) : x);
        }
        *reinterpret_cast<P*>(y + (first + i) * y_stride + column) = v[i];
      }
    }
  }
}

template <class T, int kVector>
void launch(const Problem& p) {
  const dim3 grid(static_cast<unsigned>((p.n + kThreads * kVector - 1) / (kThreads * kVector)),
                  static_cast<unsigned>(std::min<int64_t>((p.m + kRows - 1) / kRows, 65535)));
  dispatch(p.activation, [&]<class Act>(Act) {
    finish_kernel<Act, T, kVector><<<grid, kThreads, 0, static_cast<cudaStream_t>(p.stream)>>>(
        static_cast<T*>(p.y), static_cast<const T*>(p.bias), static_cast<const T*>(p.residual), p.m, p.n, p.y_stride,
        p.residual_stride);
  });
  cuda_check(cudaGetLastError(), "launch of finish_kernel");
}

template <class T>
void launch(const Problem& p) {
  constexpr int kVector = 16 / sizeof(T);
  const auto fits = [](const void* data, int64_t stride) {
    return data == nullptr || (reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kVector == 0);
  };
  if (p.n % kVector == 0 && fits(p.y, p.y_stride) && fits(p.bias, 0) && fits(p.residual, p.residual_stride)) {
    launch<T, kVector>(p);
  } else {
    launch<T, 1>(p);
  }
}

}  // namespace

void finish_in_place(const Problem& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  switch (p.element) {
    case Element::f64:
      return launch<double>(p);
    case Element::f32:
      return launch<float>(p);
    case Element::f16:
      return launch<__half>(p);
    default:
      return launch<__nv_bfloat16>(p);
  }
}

}  // namespace fuseconv::linear
