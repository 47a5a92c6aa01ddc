// The compiled kernels of one activation. Each activation is its own translation unit, sm90_kernels.cu.
#pragma once

#include "gemm/problem.h"

namespace fuseconv::linear::sm90 {

// A __global__ function and what its launch needs.
struct Kernel {
  const void* function;
  int rows, columns;  // of a block's tile of y
  int w_rows;         // that it takes
  int chunk;          // columns of y that are stored at once
  int threads;
  unsigned shared_bytes;
  int groups;  // warpgroups that multiply
  bool turns;  // each whole tiles in turn
};

inline constexpr int kTileShapes = 6;

// What y is besides act(x w^T + bias): that, that plus a residual, or that times the up half of x w^T + bias.
enum class Form { plain, residual, gated };

// element is f16 or bf16; shape is below kTileShapes.
template <Activation kActivation>
Kernel kernel(Element element, Form form, int shape);

}  // namespace fuseconv::linear::sm90
