// y[m, n] = act(y[m, n] + bias[n]) + residual[m, n], in place, with the residual before or after the activation, or, if
// gated, y[m, n] = act(z[m, n] + bias[n]) (z[m, N + n] + bias[N + n]).
//
// A thread accesses 16 bytes at a time if the rows are aligned. A block is as wide as a row, up to a maximum width, and
// computes as many rows as it takes to keep all its threads busy.
#include "gemm/pass.h"

#include <algorithm>

#include "core/coarse.cuh"

#include "gemm/cuda_check.h"

namespace fuseconv::linear {
namespace {

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Pack {
  T values[kVector];
};

constexpr int kThreads = 256;
constexpr int kRows = 4;  // rows per thread, which is the number of loads in flight

template <class T>
struct Arguments {
  T* y;
  const T* z;  // may be y
  const T* bias;
  const T* other;  // a factor if gated, else an addend
  const T* other_bias;
  bool gated;
  bool other_first;  // whether the addend is added before the activation
  int64_t rows, columns, y_stride, z_stride, other_stride;
};

template <class Act, class T, int kVector>
__global__ void __launch_bounds__(kThreads) pass_kernel(const __grid_constant__ Arguments<T> a, const Act act) {
  using W = cuda::Compute<T>;
  using P = Pack<T, kVector>;
  const int64_t column = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * kVector;
  if (column >= a.columns) {
    return;
  }
  const auto load = [](const T* at, P& pack) { pack = *reinterpret_cast<const P*>(at); };
  P bias{}, other_bias{};
  if (a.bias != nullptr) {
    load(a.bias + column, bias);
  }
  if (a.other_bias != nullptr) {
    load(a.other_bias + column, other_bias);
  }
  const int64_t band = blockIdx.y * int64_t{blockDim.y} + threadIdx.y, bands = gridDim.y * int64_t{blockDim.y};
  for (int64_t first = band * kRows; first < a.rows; first += bands * kRows) {
    P v[kRows], other[kRows] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < a.rows) {
        load(a.z + (first + i) * a.z_stride + column, v[i]);
        if (a.other != nullptr) {
          load(a.other + (first + i) * a.other_stride + column, other[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < a.rows) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          // -0 takes the place of a missing addend, because adding +0 would turn -0 into +0.
          W x = W(v[i].values[j]), o = W(other[i].values[j]);
          x = a.bias != nullptr ? x + W(bias.values[j]) : x;
          o = a.other_bias != nullptr ? o + W(other_bias.values[j]) : o;
          x = a.other_first ? x + o : x;
          x = cuda::value_of(act(cuda::FormulaType<T>(x)));
          v[i].values[j] = T(a.gated ? x * o : a.other != nullptr && !a.other_first ? x + o : x);
        }
        *reinterpret_cast<P*>(a.y + (first + i) * a.y_stride + column) = v[i];
      }
    }
  }
}

template <class T>
Arguments<T> arguments_of(const Problem& p) {
  Arguments<T> a{};
  a.gated = p.gated != 0;
  a.y = static_cast<T*>(p.y);
  a.z = static_cast<const T*>(a.gated ? p.scratch : p.y);
  a.bias = static_cast<const T*>(p.bias);
  a.rows = p.m;
  a.columns = p.n;
  a.y_stride = p.y_stride;
  a.z_stride = a.gated ? 2 * p.n : p.y_stride;
  a.other = a.gated ? a.z + p.n : static_cast<const T*>(p.residual);
  a.other_first = !a.gated && a.other != nullptr && p.residual_first != 0;
  a.other_stride = a.gated ? a.z_stride : p.residual_stride;
  a.other_bias = a.gated && a.bias != nullptr ? a.bias + p.n : nullptr;
  return a;
}

template <class T, int kVector>
void launch(const Problem& p) {
  // The vectors of a row are split evenly over the threads of one or more blocks.
  const int64_t vectors = (p.n + kVector - 1) / kVector, shares = (vectors + kThreads - 1) / kThreads;
  const int64_t width = (vectors + shares - 1) / shares;
  const dim3 block(static_cast<unsigned>(width), static_cast<unsigned>(kThreads / width));
  const int64_t band = int64_t{kRows} * block.y;
  const dim3 grid(static_cast<unsigned>(shares),
                  static_cast<unsigned>(std::min<int64_t>((p.m + band - 1) / band, 65535)));
  dispatch(p.activation, [&]<class Act>(Act act) {
    pass_kernel<Act, T, kVector><<<grid, block, 0, static_cast<cudaStream_t>(p.stream)>>>(arguments_of<T>(p), act);
  });
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
