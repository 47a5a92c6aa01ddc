// The layers of kernels/mlp.h in f32 and f64, multiplied and added in that type; any strides.
//
// A block of 256 threads takes a tile of rows through all layers in shared memory: h[k][row], written over by each
// layer. Weights come in steps of 16 along k, the next being fetched to registers while one is multiplied. A thread has
// kRows rows by 8 columns of the result; a warp has 4 threads along the rows and 8 along the columns. Few rows make
// small tiles: then it is the fetching of weights, and not the arithmetic, that a block waits for.
#include <algorithm>

#include "core/cuda.cuh"
#include "kernels/mlp.h"

namespace fuseconv::cuda {
namespace {

constexpr int kThreads = 256, kDepth = 16;

template <class T, int width, int rows>
struct Shape {
  static constexpr int kWidth = width;
  static constexpr int kRows = rows;                                         // of a thread
  static constexpr int kColumnThreads = kWidth / 8;                          // of a tile
  static constexpr int kTileRows = kRows * (kThreads / kColumnThreads);      // of a tile
  static constexpr int kPitch = kTileRows + kVectorSize<T>;                  // between columns of h
  static constexpr int kFetch = kWidth * kDepth / kThreads;                  // elements of a step that a thread fetches
  static constexpr int kHidden = kWidth * kPitch, kStep = kDepth * kWidth;   // elements
  static constexpr int kBytes = (kHidden + 2 * kStep) * sizeof(T);
};

// The column of a thread's result i: runs of one vector, so that the threads of a warp read 128 bytes side by side.
template <class T>
__device__ __forceinline__ int column_of(int first, int i) {
  constexpr int kRun = kVectorSize<T>;
  return first + i / kRun * 8 * kRun + i % kRun;
}

template <class T, class S>
__device__ __forceinline__ void fetch(const MlpLayer& layer, int step, T (&values)[S::kFetch]) {
  const int n = threadIdx.x % S::kWidth, k = step * kDepth + threadIdx.x / S::kWidth * S::kFetch;
  const T* weight = static_cast<const T*>(layer.weight) + n * layer.weight_strides[0] + k * layer.weight_strides[1];
#pragma unroll
  for (int i = 0; i < S::kFetch; ++i) {
    values[i] = n < layer.outputs && k + i < layer.inputs ? weight[i * layer.weight_strides[1]] : T(0);
  }
}

template <class T, class S>
__device__ __forceinline__ void put(T* step, const T (&values)[S::kFetch]) {
  const int n = threadIdx.x % S::kWidth, k = threadIdx.x / S::kWidth * S::kFetch;
#pragma unroll
  for (int i = 0; i < S::kFetch; ++i) {
    step[(k + i) * S::kWidth + n] = values[i];
  }
}

// h[k][row] = x[first + row, k], zeros up to a whole step. Eight columns of four rows a warp: whole sectors of x, and
// all banks of h.
template <class T, class S>
__device__ __forceinline__ void load_x(const MlpProblem& p, int64_t first, T* h) {
  const int lane = threadIdx.x % 32;
  const int inputs = (p.layer[0].inputs + kDepth - 1) / kDepth * kDepth;
  for (int r = threadIdx.x / 32 * 4 + lane % 4; r < S::kTileRows; r += kThreads / 32 * 4) {
    int64_t offset = 0, rest = first + r;
#pragma unroll 1
    for (int axis = p.x_rows.rank - 1; axis >= 0; --axis) {
      offset += rest % p.x_rows.sizes[axis] * p.x_rows.strides[0][axis];
      rest /= p.x_rows.sizes[axis];
    }
    const T* row = static_cast<const T*>(p.x) + offset;
    const bool inside = first + r < p.rows;
#pragma unroll 4
    for (int k = lane / 4; k < inputs; k += 8) {
      h[k * S::kPitch + r] = inside && k < p.layer[0].inputs ? row[k * p.x_column_stride] : T(0);
    }
  }
}

template <class T, class S>
__device__ __forceinline__ void multiply(T (&d)[S::kRows][8], const T* h, const T* step) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    constexpr int kRun = kVectorSize<T>, kRowRun = S::kRows < kRun ? S::kRows : kRun;
    T a[S::kRows], b[8];
#pragma unroll
    for (int i = 0; i < S::kRows; i += kRowRun) {
      reinterpret_cast<Vector<T, kRowRun>&>(a[i]) =
          *reinterpret_cast<const Vector<T, kRowRun>*>(h + k * S::kPitch + i);
    }
#pragma unroll
    for (int i = 0; i < 8; i += kRun) {
      reinterpret_cast<Vector<T, kRun>&>(b[i]) =
          *reinterpret_cast<const Vector<T, kRun>*>(step + k * S::kWidth + column_of<T>(0, i));
    }
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        d[i][j] = fma(a[i], b[j], d[i][j]);
      }
    }
  }
}

// h = act(h + bias), columns that the layer does not have 0, up to a whole step of the next layer.
template <class T, class S>
__device__ __forceinline__ void activate_tile(const MlpLayer& layer, T* h) {
  const int columns = (layer.outputs + kDepth - 1) / kDepth * kDepth;
  for (int i = threadIdx.x; i < columns * S::kTileRows; i += kThreads) {
    const int n = i / S::kTileRows, at = n * S::kPitch + i % S::kTileRows;
    if (n < layer.outputs) {
      const T bias = layer.bias == nullptr ? T(0) : static_cast<const T*>(layer.bias)[n * layer.bias_stride];
      h[at] = activate(layer.activation, h[at] + bias);
    } else {
      h[at] = T(0);
    }
  }
}

template <class T, class S>
__device__ __forceinline__ void store(const MlpProblem& p, int64_t first, const T* h) {
  const int outputs = p.layer[p.layers - 1].outputs, lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32 * 4 + lane % 4; r < S::kTileRows && first + r < p.rows; r += kThreads / 32 * 4) {
    T* y = static_cast<T*>(p.y) + (first + r) * outputs;
    for (int n = lane / 4; n < outputs; n += 8) {
      y[n] = h[n * S::kPitch + r];
    }
  }
}

template <class T, class S>
__global__ void __launch_bounds__(kThreads, S::kBytes <= 113 * 1024 ? 2 : 1)
    mlp_simt_kernel(const __grid_constant__ MlpProblem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  T* const h = reinterpret_cast<T*>(memory);
  T* const steps = h + S::kHidden;
  // This thread's first row and column: warps go along the columns first.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = S::kColumnThreads / 8;
  const int row = (warp / warps * 4 + lane / 8) * S::kRows;
  const int column = warp % warps * 64 + lane % 8 * kVectorSize<T>;
  for (int64_t first = int64_t{blockIdx.x} * S::kTileRows; first < p.rows;
       first += int64_t{gridDim.x} * S::kTileRows) {
    load_x<T, S>(p, first, h);
#pragma unroll 1
    for (int index = 0; index < p.layers; ++index) {
      const MlpLayer& layer = p.layer[index];
      T d[S::kRows][8] = {};
      T next[S::kFetch];
      fetch<T, S>(layer, 0, next);
      const int count = (layer.inputs + kDepth - 1) / kDepth;
#pragma unroll 1
      for (int step = 0; step < count; ++step) {
        T* const own = steps + step % 2 * S::kStep;
        put<T, S>(own, next);
        if (step + 1 < count) {
          fetch<T, S>(layer, step + 1, next);
        }
        // The step is there, and at the first one h is; all have left the step before last.
        __syncthreads();
        multiply<T, S>(d, h + step * kDepth * S::kPitch + row, own + column);
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < S::kRows; ++i) {
          h[column_of<T>(column, j) * S::kPitch + row + i] = d[i][j];
        }
      }
      __syncthreads();
      activate_tile<T, S>(layer, h);
      __syncthreads();
    }
    store<T, S>(p, first, h);
    __syncthreads();
  }
}

template <class T, class S>
void launch(const MlpProblem& p, int processors) {
  const auto kernel = &mlp_simt_kernel<T, S>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes),
             "cudaFuncSetAttribute");
  const int64_t tiles = (p.rows + S::kTileRows - 1) / S::kTileRows;
  const unsigned grid = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{processors} * 16));
  kernel<<<grid, kThreads, S::kBytes, static_cast<cudaStream_t>(p.stream)>>>(p);
  check_launch("mlp_simt_kernel");
}

template <class T, int width>
void launch(const MlpProblem& p) {
  int device, processors;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  // The largest tile that leaves no processor without one.
  const auto fills = [&]<class S>(S) { return p.rows > int64_t{S::kTileRows} * (processors - 1); };
  if constexpr (sizeof(T) == 4) {
    if (fills(Shape<T, width, 8>())) {
      return launch<T, Shape<T, width, 8>>(p, processors);
    }
  }
  if (fills(Shape<T, width, 4>())) {
    return launch<T, Shape<T, width, 4>>(p, processors);
  }
  if (fills(Shape<T, width, 2>())) {
    return launch<T, Shape<T, width, 2>>(p, processors);
  }
  launch<T, Shape<T, width, 1>>(p, processors);
}

}  // namespace

void mlp_simt(const MlpProblem& p) {
  dispatch_width(p, [&]<int width>(std::integral_constant<int, width>) {
    if (p.dtype == Dtype::f64) {
      launch<double, width>(p);
    } else {
      launch<float, width>(p);
    }
  });
}

}  // namespace fuseconv::cuda
