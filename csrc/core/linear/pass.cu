// y[m, n] = act(y[m, n] + bias[n]) + residual[m, n], in place, or, when gated,
// y[m, n] = act(z[m, n] + bias[n]) (z[m, N + n] + bias[N + n]): 16 bytes a thread where rows allow it.
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

template <class T>
struct Arguments {
  T* y;
  const T* z;  // may be y
  const T* bias;
  const T* residual;
  Activation activation;
  bool gated;
  int64_t rows, columns, y_stride, z_stride, residual_stride;
};

template <class T, int kVector>
__global__ void __launch_bounds__(256) pass_kernel(const __grid_constant__ Arguments<T> a) {
  using W = typename Wide<T>::Type;
  using P = Pack<T, kVector>;
  // Zeros where there is no such operand.
  const auto load = [](const T* data, int64_t offset) {
    return data != nullptr ? *reinterpret_cast<const P*>(data + offset) : P{};
  };
  const int64_t packs = a.columns / kVector;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * blockDim.x) {
      const int64_t column = i * kVector;
      const int64_t from = row * a.z_stride + column;
      const P z = load(a.z, from), bias = load(a.bias, column);
      P v;
      if (a.gated) {
        const P up = load(a.z, from + a.columns), up_bias = load(a.bias, column + a.columns);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          v.values[j] =
              T(activate(a.activation, W(z.values[j]) + W(bias.values[j])) * (W(up.values[j]) + W(up_bias.values[j])));
        }
      } else {
        const P residual = load(a.residual, row * a.residual_stride + column);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          v.values[j] = T(activate(a.activation, W(z.values[j]) + W(bias.values[j])) + W(residual.values[j]));
        }
      }
      *reinterpret_cast<P*>(a.y + row * a.y_stride + column) = v;
    }
  }
}

template <class T, int kVector>
void launch(const Problem& p) {
  const int64_t packs = p.n / kVector;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((packs + 255) / 256, 1 << 20)),
                  static_cast<unsigned>(std::min<int64_t>(p.m, 65535)));
  const bool gated = p.gated != 0;
  const Arguments<T> arguments{static_cast<T*>(p.y),
                               static_cast<const T*>(gated ? p.scratch : p.y),
                               static_cast<const T*>(p.bias),
                               static_cast<const T*>(p.residual),
                               p.activation,
                               gated,
                               p.m,
                               p.n,
                               p.y_stride,
                               gated ? 2 * p.n : p.y_stride,
                               p.residual_stride};
  pass_kernel<T, kVector><<<grid, 256, 0, static_cast<cudaStream_t>(p.stream)>>>(arguments);
  cuda_check(cudaGetLastError(), "launch of pass_kernel");
}

template <class T>
void launch(const Problem& p) {
  constexpr int kVector = 16 / sizeof(T);
  const auto fits = [](const void* data, int64_t stride) {
    return data == nullptr || (reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kVector == 0);
  };
  if (p.n % kVector == 0 && fits(p.y, p.y_stride) && fits(p.scratch, 0) && fits(p.bias, 0) &&
      fits(p.residual, p.residual_stride)) {
    launch<T, kVector>(p);
  } else {
    launch<T, 1>(p);
  }
}

}  // namespace

void pass(const Problem& p) {
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
