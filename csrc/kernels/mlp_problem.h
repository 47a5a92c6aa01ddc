// The layers of kernels/mlp.h on CUDA in f16 and bf16, as the kernels see them. One kernel runs all layers over tiles
// of rows.
//
//   mlp_sm90.cu  on Hopper: wgmma, operands copied by TMA; requires dense rows at multiples of 16 bytes
//   mlp_mma.cu   from sm_80 on: mma.sync; supports any strides
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/layout.h"
#include "core/tensor_view.h"

namespace fuseconv::cuda {

struct MlpOperands {
  const void* weight;  // [outputs, inputs] with these strides
  int64_t weight_strides[2];
  const void* bias;  // [outputs], or null
  int64_t bias_stride;
  int inputs, outputs;
  Activation activation;
};

struct MlpProblem {
  Dtype dtype;
  int64_t rows;  // at least 1
  const void* x;
  Loop x_rows;  // operand 0 is x
  int64_t x_column_stride;
  int layers;
  MlpOperands layer[3];
  void* y;  // [rows, outputs of the last layer], dense
  void* stream;

  // Returns the largest width of x and of all layers, rounded up to a width for which kernels are compiled: 64, 128 or
  // 256.
  int width() const {
    int widest = layer[0].inputs;
    for (int i = 0; i < layers; ++i) {
      widest = widest < layer[i].outputs ? layer[i].outputs : widest;
    }
    return widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
  }
};

// Calls `function` with width() as a compile-time constant.
template <class Function>
void dispatch_width(const MlpProblem& p, Function function) {
  switch (p.width()) {
    case 64:
      return function(std::integral_constant<int, 64>());
    case 128:
      return function(std::integral_constant<int, 128>());
    default:
      return function(std::integral_constant<int, 256>());
  }
}

// Returns whether mlp_sm90 supports the problem: TMA can address all operands, and the device has compute capability
// 9.0.
bool mlp_sm90_takes(const MlpProblem& problem);
void mlp_sm90(const MlpProblem& problem);
void mlp_mma(const MlpProblem& problem);

}  // namespace fuseconv::cuda
