// A tuple for device code. <cuda/std/tuple> has more of it, but its headers take nvcc three seconds per file.
#pragma once

#include <utility>

namespace fuseconv::cuda {

template <int I, class T>
struct TupleElement {
  T value;
};

template <class Sequence, class... Types>
struct TupleElements;

template <int... I, class... Types>
struct TupleElements<std::integer_sequence<int, I...>, Types...> : TupleElement<I, Types>... {};

template <class... Types>
using Tuple = TupleElements<std::make_integer_sequence<int, sizeof...(Types)>, Types...>;

template <class... Types>
__device__ __forceinline__ Tuple<Types...> tuple_of(const Types&... values) {
  return {{values}...};
}

template <int I, class T>
__device__ __forceinline__ T& element(TupleElement<I, T>& tuple) {
  return tuple.value;
}
template <int I, class T>
__device__ __forceinline__ const T& element(const TupleElement<I, T>& tuple) {
  return tuple.value;
}

}  // namespace fuseconv::cuda
