// Computes y = formula(x...), elementwise with broadcasting, over tensors with any strides. Compiled once per
// instruction set.
//
// The formula is a functor on values of the compute type. It runs over blocks that fit in the L1 cache. A block of an
// operand that is dense and needs no conversion is read where it is. A block of any other operand is first gathered and
// widened into a buffer. Therefore a formula is instantiated only for float and double, and its loop always runs over
// dense memory.
//
// An input is a tensor or a source. A source is an object that computes values from indices, with
// `source.fill<kBlock>(index, stride, values, n)`, where index is the row-major index of the first of n elements.
#pragma once

#if defined(__CUDACC__)
#include "kernels/pointwise.cuh"
#elif defined(FUSECONV_KERNELS)
#include <type_traits>
#include <utility>

#include "core/activation.h"
#include "core/dtype.h"
#include "core/host.h"
#include "core/layout.h"
#include "kernels/block.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// A function that computes n dense results y from dense inputs x in the compute type A.
template <class A>
using BlockFunction = void (*)(const void* formula, A* y, const A* const* x, int64_t n);

// Returns the formula at an address. For a formula without members, the address may be null, and the formula is
// default-constructed.
template <class Formula>
decltype(auto) formula_at(const void* place) {
  if constexpr (std::is_empty_v<Formula>) {
    return Formula{};
  } else {
    return *static_cast<const Formula*>(place);
  }
}

template <class Formula, class A, size_t... I>
void block(const void* formula, A* y, const A* const* x, int64_t n, std::index_sequence<I...>) {
  const Formula& f = formula_at<Formula>(formula);
  // Each iteration reads and writes only its own element, so in-place use (y == x[i]) is safe.
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    y[i] = f(x[I][i]...);
  }
}

template <class Formula, class A, size_t N>
void block(const void* formula, A* y, const A* const* x, int64_t n) {
  block<Formula, A>(formula, y, x, n, std::make_index_sequence<N>{});
}

// Applies an activation whose functor is `Act` to a block. `activation` points to the Activation.
template <class Act, class A>
void activated_block(const void* activation, A* y, const A* const* x, int64_t n) {
  const Act act = functor_of<Act>(*static_cast<const Activation*>(activation));
  block<Act, A, 1>(&act, y, x, n);
}

// An input of run_pointwise. If `fill` is null, `data` points to elements; otherwise `data` points to a source.
template <class A>
struct Operand {
  const void* data;
  void (*fill)(const void* source, int64_t index, int64_t stride, A* values, int64_t n);
};

template <class A, class Input>
Operand<A> operand(const Input& input) {
  if constexpr (std::is_same_v<Input, In>) {
    return {input.data, nullptr};
  } else {
    return {&input, [](const void* source, int64_t index, int64_t stride, A* values, int64_t n) {
              static_cast<const Input*>(source)->template fill<kBlock>(index, stride, values, n);
            }};
  }
}

// Applies the formula to all elements of the loop. Defined in pointwise.cpp for the four element types.
template <class T>
void run_pointwise(CpuHost& host, const Loop& loop, void* y, const Operand<Compute<T> >* x, int inputs,
                   BlockFunction<Compute<T> > function, const void* formula);

template <class Formula, class... Inputs>
void pointwise(CpuHost& host, const Formula& formula, Out y, const Inputs&... inputs) {
  static_assert(sizeof...(Inputs) < kMaxOperands);
  const Spec row_major = contiguous_like(y);
  const Loop loop = element_loop(y, {places(inputs, row_major)...});
  dispatch(y.dtype, [&]<class T>(T) {
    using A = Compute<T>;
    const Operand<A> operands[] = {operand<A>(inputs)...};
    run_pointwise<T>(host, loop, y.data, operands, sizeof...(Inputs), &block<Formula, A, sizeof...(Inputs)>, &formula);
  });
}

// Computes a formula with an activation: `Formula<Act>` stores the activation as `act`.
template <template <class> class Formula, class... Inputs>
void activated_pointwise(CpuHost& host, Activation activation, Out y, const Inputs&... inputs) {
  dispatch(activation, [&]<class Act>(Act act) { pointwise(host, Formula<Act>{act}, y, inputs...); });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
#endif
