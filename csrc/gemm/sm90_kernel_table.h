// Lists the activations for which kernels are compiled, and returns the compiled kernels. Each activation has its own
// translation unit, compiled from sm90_kernels.cu.
#pragma once

#include "gemm/problem.h"
#include "gemm/sm90_tile.h"

namespace fuseconv::linear::sm90 {

// The activations that have kernels. The kernels of hard_swish also compute hard_sigmoid, relu6, relu_squared and
// leaky_relu. Other backends compute layers with any other activation. The list is short because each entry takes a
// long time to compile. csrc/gemm/backends.cmake reads this list.
#define FUSECONV_SM90_ACTIVATIONS(DO) \
  DO(none)                            \
  DO(relu)                            \
  DO(gelu)                            \
  DO(gelu_tanh)                       \
  DO(silu)                            \
  DO(sigmoid)                         \
  DO(hard_swish)

// A __global__ function, or null, and the numbers needed to launch it.
struct Kernel {
  const void* function;
  int rows, columns;  // the size of a block's tile of y
  int w_rows;         // the rows of w that a tile reads
  int chunk;          // the columns of y that are stored at once
  int threads;
  unsigned shared_bytes;
  int groups;      // the number of consumer warpgroups
  bool ping_pong;  // whether each warpgroup computes whole tiles
};

inline constexpr int kTileShapes = 7;

// Returns the kernel of a tile shape, whose function is null if it is not compiled, as some are not for f32. `shape` is
// below kTileShapes.
template <Activation::Name kActivation>
Kernel kernel(Element element, Form form, int shape);

}  // namespace fuseconv::linear::sm90
