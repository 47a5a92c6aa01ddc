// linear_kernel for one activation, FUSECONV_ACTIVATION, in every element type, tile shape, with and without residual.
#include "core/linear/sm90_kernel.cuh"
#include "core/linear/sm90_kernel_table.h"

namespace fuseconv::linear::sm90 {
namespace {

template <class T, Activation kActivation, bool kResidual, class Tile>
Kernel describe() {
  return {reinterpret_cast<const void*>(&linear_kernel<T, Epilogue<kActivation>, kResidual, Tile>),
          Tile::kRows,
          Tile::kColumns,
          Tile::kThreads,
          Tile::kBytes,
          Tile::kGroups,
          Tile::kTurns};
}

template <class T, Activation kActivation, bool kResidual>
Kernel of_shape(int shape) {
  switch (shape) {
    case 0:
      return describe<T, kActivation, kResidual, Turns128x128>();
    case 1:
      return describe<T, kActivation, kResidual, Turns128x160>();
    case 2:
      return describe<T, kActivation, kResidual, Turns128x176>();
    case 3:
      return describe<T, kActivation, kResidual, Turns64x128>();
    case 4:
      return describe<T, kActivation, kResidual, Together128x192>();
    default:
      return describe<T, kActivation, kResidual, Together64x64>();
  }
}

}  // namespace

template <Activation kActivation>
Kernel kernel(Element element, bool residual, int shape) {
  if (element == Element::bf16) {
    return residual ? of_shape<__nv_bfloat16, kActivation, true>(shape)
                    : of_shape<__nv_bfloat16, kActivation, false>(shape);
  }
  return residual ? of_shape<__half, kActivation, true>(shape) : of_shape<__half, kActivation, false>(shape);
}

template Kernel kernel<Activation::FUSECONV_ACTIVATION>(Element, bool, int);

}  // namespace fuseconv::linear::sm90
