// Compiles linear_kernel for one activation, FUSECONV_ACTIVATION, and for every element type, epilogue and tile shape.
#include <type_traits>

#include "gemm/sm90_kernel.cuh"
#include "gemm/sm90_kernel_table.h"

namespace fuseconv::linear::sm90 {
namespace {

template <class T, Activation::Name kActivation, class Tile>
Kernel describe() {
  using Act = std::conditional_t<kActivation == Activation::hard_swish, Piecewise, Epilogue<kActivation>>;
  return {reinterpret_cast<const void*>(&linear_kernel<T, Act, Tile>),
          Tile::kRows,
          Tile::kYColumns,
          Tile::kColumns,
          Tile::kChunk,
          Tile::kThreads,
          Tile::kBytes,
          Tile::kGroups,
          Tile::kTurns};
}

template <class T, Activation::Name kActivation, Form kForm>
Kernel of_shape(int shape) {
  switch (shape) {
    case 0:
      return describe<T, kActivation, Turns128x128<kForm>>();
    case 1:
      return describe<T, kActivation, Turns128x160<kForm>>();
    case 2:
      return describe<T, kActivation, Turns128x176<kForm>>();
    case 3:
      return describe<T, kActivation, Turns64x128<kForm>>();
    case 4:
      return describe<T, kActivation, Together128x192<kForm>>();
    case 5:
      return describe<T, kActivation, Together64x64<kForm>>();
    default:
      return describe<T, kActivation, Turns256x64<kForm>>();
  }
}

template <class T, Activation::Name kActivation>
Kernel of_form(Form form, int shape) {
  switch (form) {
    case Form::plain:
      return of_shape<T, kActivation, Form::plain>(shape);
    case Form::residual:
      return of_shape<T, kActivation, Form::residual>(shape);
    default:
      return of_shape<T, kActivation, Form::gated>(shape);
  }
}

}  // namespace

template <Activation::Name kActivation>
Kernel kernel(Element element, Form form, int shape) {
  return element == Element::bf16 ? of_form<__nv_bfloat16, kActivation>(form, shape)
                                  : of_form<__half, kActivation>(form, shape);
}

template Kernel kernel<Activation::FUSECONV_ACTIVATION>(Element, Form, int);

}  // namespace fuseconv::linear::sm90
