// The layers of kernels/mlp.h in f16 and bf16 with mma.sync, from sm_80 on. Supports any strides.
//
// A warp takes 16 rows through all layers in registers: the accumulators of m16n8k16 have the layout of the A operand
// of the next layer. The eight warps of a block share the weights, which are copied to shared memory in steps of 64
// along k; one step is copied while the other is multiplied.
#include <algorithm>

#include "arch/sm80.cuh"
#include "core/cuda.cuh"
#include "core/shared_memory.h"
#include "gemm/activation.cuh"
#include "kernels/mlp_problem.h"

namespace fuseconv::cuda {
namespace {

using namespace arch::sm80;

constexpr int kThreads = 256, kRowsPerWarp = 16, kRowsPerTile = kThreads / 32 * kRowsPerWarp;
constexpr int kDepth = 64;          // the depth of a step along k
constexpr int kPitch = kDepth + 8;  // elements between the rows of a step, so that ldmatrix has no bank conflicts

struct MmaArguments {
  MlpProblem problem;
  bool by_vector[3];  // whether the weight's rows are dense, aligned, and a whole number of vectors
};

template <class Element>
__device__ __forceinline__ uint32_t pack(Element low, Element high) {
  const Vector<Element, 2> pair{{low, high}};
  return reinterpret_cast<const uint32_t&>(pair);
}

// Copies columns [64 step, 64 step + 64) of a weight to shared memory, with zeros past the end of the weight.
template <class Element, int kWidth>
__device__ __forceinline__ void copy_step(const MmaArguments& a, int index, int step, Element* to) {
  const MlpOperands& layer = a.problem.layer[index];
  const Element* weight = static_cast<const Element*>(layer.weight);
  if (a.by_vector[index]) {
    for (int i = threadIdx.x; i < kWidth * kDepth / 8; i += kThreads) {
      const int n = i / (kDepth / 8), k = i % (kDepth / 8) * 8, column = step * kDepth + k;
      const bool inside = n < layer.outputs && column < layer.inputs;
      copy_async(shared_address(to + n * kPitch + k), inside ? weight + n * layer.weight_strides[0] + column : weight,
                 inside ? 16 : 0);
    }
  } else {
    for (int i = threadIdx.x; i < kWidth * kDepth; i += kThreads) {
      const int n = i / kDepth, k = i % kDepth, column = step * kDepth + k;
      const bool inside = n < layer.outputs && column < layer.inputs;
      to[n * kPitch + k] =
          inside ? weight[n * layer.weight_strides[0] + column * layer.weight_strides[1]] : Element(0.0f);
    }
  }
  copy_commit();
}

// Loads this thread's elements of 16 rows of x, from `first` on, in the layout of the A operand of mma.
template <class Element, int kWidth>
__device__ __forceinline__ void load_x(const MlpProblem& p, int64_t first, uint32_t (&h)[kWidth / 16][4]) {
  const int lane = threadIdx.x % 32;
  const Element* rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first + lane / 4 + 8 * half;
    int64_t offset = 0, rest = row;
#pragma unroll 1
    for (int axis = p.x_rows.rank - 1; axis >= 0; --axis) {
      offset += rest % p.x_rows.sizes[axis] * p.x_rows.strides[0][axis];
      rest /= p.x_rows.sizes[axis];
    }
    rows[half] = row < p.rows ? static_cast<const Element*>(p.x) + offset : nullptr;
  }
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i) {
    const Element* row = rows[i % 2];
    const int column = i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
    const auto at = [&](int c) {
      return row != nullptr && c < p.layer[0].inputs ? row[c * p.x_column_stride] : Element(0.0f);
    };
    h[i / 4][i % 4] = pack(at(column), at(column + 1));
  }
}

// h = act(d + bias). Sets the columns beyond the width of the layer to 0. Their weights in the next layer are also 0,
// but 0 * NaN would be NaN.
template <class Element, int kWidth, class Epilogue>
__device__ __forceinline__ void activate(Epilogue act, const MlpOperands& layer, const float (&d)[kWidth / 8][4],
                                         uint32_t (&h)[kWidth / 16][4]) {
  const Element* bias = static_cast<const Element*>(layer.bias);
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    float b[2];
    const int column = 8 * j + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool has = bias != nullptr && column + i < layer.outputs;
      b[i] = has ? Epilogue::kScale * widen(bias[(column + i) * layer.bias_stride]) : 0.0f;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Element y[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = act.apply(fmaf(d[j][2 * half + i], Epilogue::kScale, b[i]));
        y[i] = narrow<Element>(column + i < layer.outputs ? value : 0.0f);
      }
      h[j / 2][j % 2 * 2 + half] = pack(y[0], y[1]);
    }
  }
}

template <class Element, int kWidth>
__device__ __forceinline__ void activate(const MlpOperands& layer, const float (&d)[kWidth / 8][4],
                                         uint32_t (&h)[kWidth / 16][4]) {
  // This does not use with_constant, because a lambda over d and h costs the small layers 4 % (H200).
  switch (layer.activation) {
#define FUSECONV_CASE(name, Functor) \
  case Activation::name:             \
    return activate<Element, kWidth>(linear::epilogue_of<Activation::name>(layer.activation), layer, d, h);
    FUSECONV_ACTIVATIONS(FUSECONV_CASE)
#undef FUSECONV_CASE
  }
}

template <class Element, int kWidth>
__device__ __forceinline__ void store(const MlpProblem& p, int64_t first, const uint32_t (&h)[kWidth / 16][4]) {
  const int lane = threadIdx.x % 32, outputs = p.layer[p.layers - 1].outputs;
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i) {
    const int64_t row = first + lane / 4 + 8 * (i % 2);
    const int column = i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
    if (row < p.rows && column < outputs) {
      uint16_t* y = static_cast<uint16_t*>(p.y) + row * outputs + column;
      if (outputs % 2 == 0) {
        *reinterpret_cast<uint32_t*>(y) = h[i / 4][i % 4];
      } else {
        y[0] = static_cast<uint16_t>(h[i / 4][i % 4]);
        if (column + 1 < outputs) {
          y[1] = static_cast<uint16_t>(h[i / 4][i % 4] >> 16);
        }
      }
    }
  }
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) mlp_mma_kernel(const __grid_constant__ MmaArguments a) {
  extern __shared__ __align__(16) uint8_t memory[];
  Element* const steps = reinterpret_cast<Element*>(memory);
  const MlpProblem& p = a.problem;
  const int lane = threadIdx.x % 32;
  // This lane passes the address of one matrix row to ldmatrix. Its row and first column are relative to a 16 by 16
  // piece of a step.
  const int piece = (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 8;
  for (int64_t tile = blockIdx.x; tile * kRowsPerTile < p.rows; tile += gridDim.x) {
    const int64_t first = tile * kRowsPerTile + threadIdx.x / 32 * kRowsPerWarp;
    uint32_t h[kWidth / 16][4];
    int buffer = 0;
    copy_step<Element, kWidth>(a, 0, 0, steps);
    load_x<Element, kWidth>(p, first, h);
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      float d[kWidth / 8][4] = {};
      // There is at least one step, so that the first step of the next layer is copied even if this layer has no
      // inputs.
      const int count = max((p.layer[layer].inputs + kDepth - 1) / kDepth, 1);
#pragma unroll
      for (int step = 0; step < kWidth / kDepth; ++step) {
        if (step < count) {
          copy_wait<0>();
          // This step has arrived, and all warps have finished with the other step.
          __syncthreads();
          Element* const next = steps + (buffer ^ 1) * kWidth * kPitch;
          if (step + 1 < count) {
            copy_step<Element, kWidth>(a, layer, step + 1, next);
          } else if (layer + 1 < p.layers) {
            copy_step<Element, kWidth>(a, layer + 1, 0, next);
          }
          const uint32_t from = shared_address(steps + buffer * kWidth * kPitch + piece);
          buffer ^= 1;
#pragma unroll
          for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
            for (int j = 0; j < kWidth / 8; j += 2) {
              uint32_t b[4];
              load_matrices(b, from + (j * 8 * kPitch + k * 16) * 2);
              multiply(d[j], h[step * 4 + k], b[0], b[1], Element());
              multiply(d[j + 1], h[step * 4 + k], b[2], b[3], Element());
            }
          }
        }
      }
      activate<Element, kWidth>(p.layer[layer], d, h);
    }
    store<Element, kWidth>(p, first, h);
    __syncthreads();
  }
}

template <class Element, int kWidth>
void launch(const MlpProblem& p) {
  MmaArguments a{p, {}};
  for (int i = 0; i < p.layers; ++i) {
    const MlpOperands& layer = p.layer[i];
    a.by_vector[i] = is_aligned(layer.weight) && layer.weight_strides[1] == 1 && layer.inputs % 8 == 0 &&
                     (layer.weight_strides[0] % 8 == 0 || layer.outputs == 1);
  }
  constexpr int kBytes = 2 * kWidth * kPitch * static_cast<int>(sizeof(Element));
  const auto kernel = &mlp_mma_kernel<Element, kWidth>;
  allow_shared_memory(kernel, kBytes);
  int device, sms, blocks;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, kBytes),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const int64_t tiles = (p.rows + kRowsPerTile - 1) / kRowsPerTile;
  const unsigned grid = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{sms} * blocks));
  kernel<<<grid, kThreads, kBytes, static_cast<cudaStream_t>(p.stream)>>>(a);
  check_launch("mlp_mma_kernel");
}

}  // namespace

void mlp_mma(const MlpProblem& p) {
  dispatch_width(p, [&]<int width>(std::integral_constant<int, width>) {
    if (p.dtype == Dtype::bf16) {
      launch<__nv_bfloat16, width>(p);
    } else {
      launch<__half, width>(p);
    }
  });
}

}  // namespace fuseconv::cuda
