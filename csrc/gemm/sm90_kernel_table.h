// The compiled kernels by activation. Each line of the list has its own translation unit, made from sm90_kernels.cu.
#pragma once

#include "gemm/problem.h"

namespace fuseconv::linear::sm90 {

// The activations that have kernels. Those of hard_swish compute hard_sigmoid, relu6 and leaky_relu too; a product with
// another activation is left to other backends. Each is slow to compile. csrc/gemm/backends.cmake reads this.
#define FUSECONV_SM90_ACTIVATIONS(DO) \
  DO(none)                            \
  DO(relu)                            \
  DO(gelu)                            \
  DO(gelu_tanh)                       \
  DO(silu)                            \
  DO(sigmoid)                         \
  DO(hard_swish)

// A __global__ function and what is needed to launch it.
struct Kernel {
  const void* function;
  int rows, columns;  // of a block's tile of y
  int w_rows;         // that it takes
  int chunk;          // columns of y that are stored at once
  int threads;
  unsigned shared_bytes;
  int groups;  // consumer warpgroups
  bool turns;  // ping-pong: each has whole tiles
};

inline constexpr int kTileShapes = 6;

// The epilogue of y besides act(x w^T + bias): none, plus a residual, or times the up half of x w^T + bias.
enum class Form { plain, residual, gated };

// element is f16 or bf16; shape is below kTileShapes.
template <Activation::Name kActivation>
Kernel kernel(Element element, Form form, int shape);

}  // namespace fuseconv::linear::sm90
