// Compiles linear_kernel for one activation, FUSECONV_ACTIVATION, and for every element type, epilogue and tile shape.
#include <type_traits>

#include "gemm/sm90_kernel.cuh"
#include "gemm/sm90_kernel_table.h"

namespace fuseconv::linear::sm90 {
namespace {

// f32 has fewer kernels than 16-bit elements, because each takes long to compile: those with the activations that
// usually follow convolutions, of four tile shapes, and none that is gated.
constexpr bool kFollowsConvolutions =
    Activation::FUSECONV_ACTIVATION != Activation::gelu_tanh && Activation::FUSECONV_ACTIVATION != Activation::sigmoid;

template <class T, Activation::Name kActivation, class Tile>
Kernel describe() {
  using Half = std::conditional_t<kActivation == Activation::hard_swish, Piecewise, Epilogue<kActivation>>;
  using Single = std::conditional_t<kActivation == Activation::hard_swish, Piecewise, Exact<kActivation>>;
  using Act = std::conditional_t<sizeof(T) == 4, Single, Half>;
  return {reinterpret_cast<const void*>(&linear_kernel<T, Act, Tile>),
          Tile::kRows,
          Tile::kYColumns,
          Tile::kColumns,
          Tile::kChunk,
          Tile::kThreads,
          Tile::kBytes,
          Tile::kGroups,
          Tile::kPingPong};
}

template <class T, Activation::Name kActivation, Form kForm>
Kernel of_shape(int shape) {
  switch (shape) {
    case 0:
      return describe<T, kActivation, PingPong128x128<T, kForm>>();
    case 4:
      return describe<T, kActivation, Cooperative128x192<T, kForm>>();
    case 5:
      return describe<T, kActivation, Cooperative64x64<T, kForm>>();
    case 6:
      return describe<T, kActivation, PingPong256x64<T, kForm>>();
  }
  if constexpr (sizeof(T) == 2) {
    switch (shape) {
      case 1:
        return describe<T, kActivation, PingPong128x160<T, kForm>>();
      case 2:
        return describe<T, kActivation, PingPong128x176<T, kForm>>();
      case 3:
        return describe<T, kActivation, PingPong64x128<T, kForm>>();
    }
  }
  return {};
}

template <class T, Activation::Name kActivation>
Kernel of_form(Form form, int shape) {
  if (form == Form::plain) {
    return of_shape<T, kActivation, Form::plain>(shape);
  }
  if (form == Form::residual) {
    return of_shape<T, kActivation, Form::residual>(shape);
  }
  if constexpr (sizeof(T) == 2) {
    return of_shape<T, kActivation, Form::gated>(shape);
  } else {
    return {};
  }
}

}  // namespace

template <Activation::Name kActivation>
Kernel kernel(Element element, Form form, int shape) {
  if (element == Element::f32) {
    if constexpr (kFollowsConvolutions) {
      return of_form<float, kActivation>(form, shape);
    } else {
      return {};
    }
  }
  return element == Element::bf16 ? of_form<__nv_bfloat16, kActivation>(form, shape)
                                  : of_form<__half, kActivation>(form, shape);
}

template Kernel kernel<Activation::FUSECONV_ACTIVATION>(Element, Form, int);

}  // namespace fuseconv::linear::sm90
