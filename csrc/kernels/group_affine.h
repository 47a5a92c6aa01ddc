// What both layouts of the CPU's group norm share. Compiled once per instruction set.
#pragma once

#include "kernels/group_norm.h"
#include "kernels/pointwise.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// The least number of elements of one of several parts of a group. Twice as many fit in the L2 cache, and adding them
// takes longer than waking a thread.
inline constexpr int64_t kGroupPart = 32768;

// Returns the loop over the dims [begin, end) of two tensors.
inline Loop loop_over(In y, In x, int begin, int end) {
  const auto dims = [&](In tensor) {
    return In{nullptr, tensor.dtype, end - begin, tensor.sizes + begin, tensor.strides + begin};
  };
  const In result = dims(y);
  return element_loop({nullptr, result.dtype, result.rank, result.sizes, result.strides}, {dims(x)});
}

// The weight, the bias and the activation of a group norm.
template <class T>
class GroupAffine {
 public:
  using A = Compute<T>;

  explicit GroupAffine(const GroupNorm& norm) : norm_(norm), activate_(nullptr) {
    dispatch(norm.activation, [&]<class Act>(Act) { activate_ = &activated_block<Act, A>; });
  }

  A weight(int64_t channel) const { return at(norm_.weight, channel, A(1)); }
  A bias(int64_t channel) const { return at(norm_.bias, channel, A(0)); }

  void activate(A* values, int64_t n) const {
    if (norm_.activation != Activation::none) {
      const A* in_place = values;
      activate_(&norm_.activation, values, &in_place, n);
    }
  }

 private:
  static A at(const std::optional<In>& vector, int64_t channel, A absent) {
    return vector ? widen(static_cast<const T*>(vector->data)[channel * vector->strides[0]]) : absent;
  }

  const GroupNorm& norm_;
  BlockFunction<A> activate_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
