// The code that the two Hopper kernels of mlp.h share: their arguments and the epilogue of a layer.
//
// Values between layers are pairs of 16-bit elements in the layout of wgmma and ldmatrix: h[s] holds 16 columns of 16
// rows per warp, of which this thread holds 2 of every 8 columns, in rows lane / 4 and lane / 4 + 8.
#pragma once

#include "arch/pairs.cuh"
#include "arch/sm90.cuh"
#include "arch/sm90_wgmma.cuh"
#include "core/cuda.cuh"
#include "gemm/activation.cuh"
#include "gemm/ring.cuh"
#include "kernels/mlp_problem.h"

namespace fuseconv::cuda::mlp {

using namespace arch::sm90;
using arch::pack;
using arch::unpack;
using linear::Ring;

inline constexpr uint32_t kBoxBytes = 64 * 128;    // 64 rows of 64 columns
inline constexpr uint32_t kStripBytes = 16 * 128;  // a warp's rows of a box

struct Layer {
  const void* bias;
  int64_t bias_stride;
  int outputs;
  int steps;  // the number of steps of 64 along k
  Activation activation;
};

struct Arguments {
  CUtensorMap x, y, weight[3];
  Layer layer[3];
  int layers, rows, tiles;
  int steps;           // the steps of all layers
  void* y_by_element;  // set if the rows of y are not at multiples of 16 bytes; else null
};

// Copies the biases of all layers to shared memory with 256 threads: `kColumns` elements of each, starting at column
// `first`.
template <class Element, int kColumns>
__device__ __forceinline__ void load_bias(const Arguments& a, Element* bias, int first, int thread) {
  for (int i = thread; i < a.layers * kColumns; i += 256) {
    const Layer& layer = a.layer[i / kColumns];
    const int column = first + i % kColumns;
    const bool has = layer.bias != nullptr && column < layer.outputs;
    bias[i] = has ? static_cast<const Element*>(layer.bias)[column * layer.bias_stride] : Element(0.0f);
  }
  named_barrier_wait(3, 256);
}

// h = act(d + bias)
template <class Element, int kWidth, class Epilogue>
__device__ __forceinline__ void activate(Epilogue act, uint32_t (&h)[kWidth / 16][4], const float (&d)[kWidth / 2],
                                         const Element* bias) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float2 b = unpack(*reinterpret_cast<const uint32_t*>(bias + 8 * j), Element());
    const float low = b.x * Epilogue::kScale, high = b.y * Epilogue::kScale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      h[j / 2][j % 2 * 2 + half] = pack(act.apply(fmaf(d[4 * j + 2 * half], Epilogue::kScale, low)),
                                        act.apply(fmaf(d[4 * j + 2 * half + 1], Epilogue::kScale, high)), Element());
    }
  }
}

template <class Element, int kWidth>
__device__ __forceinline__ void activate(Activation activation, uint32_t (&h)[kWidth / 16][4],
                                         const float (&d)[kWidth / 2], const Element* bias) {
  // This does not use with_constant, because a lambda over h and d costs the small layers 4 % (H200).
  switch (activation) {
#define FUSECONV_CASE(name, Functor) \
  case Activation::name:             \
    return activate<Element, kWidth>(linear::epilogue_of<Activation::name>(activation), h, d, bias);
    FUSECONV_ACTIVATIONS(FUSECONV_CASE)
#undef FUSECONV_CASE
  }
}

// Sets the columns beyond the width of a layer to 0. Their weights in the next layer are also 0, but 0 * NaN would be
// NaN.
template <int kSteps16>
__device__ __forceinline__ void clear_beyond(uint32_t (&h)[kSteps16][4], int outputs, int thread_column) {
#pragma unroll
  for (int i = 0; i < kSteps16 * 4; ++i) {
    const int column = i / 4 * 16 + i % 4 / 2 * 8 + thread_column;
    h[i / 4][i % 4] = column + 1 < outputs ? h[i / 4][i % 4] : column < outputs ? h[i / 4][i % 4] & 0xffffu : 0u;
  }
}

// Writes 64 columns of this warp's rows to `to`, swizzled as TMA does. The columns start at column 16 * `part` of h.
template <int kSteps16>
__device__ __forceinline__ void write_strip(const uint32_t (&h)[kSteps16][4], int part, uint32_t to, int lane) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto& m = h[part + j];
    store_matrices(to + lane % 16 * 128 + (((2 * j + lane / 16) ^ (lane % 8)) << 4), m[0], m[1], m[2], m[3]);
  }
}

// Writes this warp's rows of y, starting at `row` and `column`.
template <int kSteps16>
__device__ __forceinline__ void store_by_element(const Arguments& a, const uint32_t (&h)[kSteps16][4], int row,
                                                 int column, int lane) {
  const int outputs = a.layer[a.layers - 1].outputs;
#pragma unroll
  for (int i = 0; i < kSteps16 * 4; ++i) {
    const int own_row = row + lane / 4 + i % 2 * 8, own = column + i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
    if (own_row < a.rows && own < outputs) {
      uint16_t* y = static_cast<uint16_t*>(a.y_by_element) + static_cast<int64_t>(own_row) * outputs + own;
      y[0] = static_cast<uint16_t>(h[i / 4][i % 4]);
      if (own + 1 < outputs) {
        y[1] = static_cast<uint16_t>(h[i / 4][i % 4] >> 16);
      }
    }
  }
}

}  // namespace fuseconv::cuda::mlp
