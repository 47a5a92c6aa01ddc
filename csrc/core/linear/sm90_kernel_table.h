// The compiled kernels of one activation. Each activation is its own translation unit, sm90_kernels.cu.
#pragma once

#include "core/linear/problem.h"

namespace fuseconv::linear::sm90 {

// A __global__ function and what its launch needs.
struct Kernel {
  const void* function;
  int rows, columns;  // of a block's tile of y
  int threads;
  unsigned shared_bytes;
  int groups;  // warpgroups that multiply
  bool turns;  // each whole tiles in turn
};

inline constexpr int kTileShapes = 6;

// element is f16 or bf16; shape is below kTileShapes.
template <Activation kActivation>
Kernel kernel(Element element, bool residual, int shape);

}  // namespace fuseconv::linear::sm90
