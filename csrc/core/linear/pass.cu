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

template <class T, int kVector>
__global__ void __launch_bounds__(256)
    finish_kernel(T* y, const T* bias, const T* residual, Activation activation, int64_t rows, int64_t columns,
                  int64_t y_stride, int64_t residual_stride) {
  using W = typename Wide<T>::Type;
  using P = Pack<T, kVector>;
  const int64_t packs = columns / kVector;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * blockDim.x) {
      const int64_t column = i * kVector;
      P v = *reinterpret_cast<const P*>(y + row * y_stride + column), b{}, r{};
      if (bias != nullptr) {
        b = *reinterpret_cast<const P*>(bias + column);
      }
      if (residual != nullptr) {
        r = *reinterpret_cast<const P*>(residual + row * residual_stride + column);
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const W x = W(v.values[j]) + (bias != nullptr ? W(b.values[j]) : W(0));
        v.values[j] = T(activate(activation, x) + (residual != nullptr ? W(r.values[j]) : W(0)));
      }
      *reinterpret_cast<P*>(y + row * y_stride + column) = v;
    }
  }
}

template <class T, int kVector>
void launch(const Problem& p) {
  const int64_t packs = p.n / kVector;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((packs + 255) / 256, 1 << 20)),
                  static_cast<unsigned>(std::min<int64_t>(p.m, 65535)));
  finish_kernel<T, kVector><<<grid, 256, 0, static_cast<cudaStream_t>(p.stream)>>>(
      static_cast<T*>(p.y), static_cast<const T*>(p.bias), static_cast<const T*>(p.residual), p.activation, p.m, p.n,
      p.y_stride, p.residual_stride);
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
