// The elementwise pass after another library's convolution. It adds the bias and the residual and applies the
// activation.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/convolution.h"
#include "kernels/pointwise.h"

namespace fuseconv {

// act(x + ...)
template <class Act>
struct ActivatedSum {
  Act act;
  template <class A, class... Terms>
  FUSECONV_INLINE A operator()(A x, Terms... terms) const {
    return act((x + ... + terms));
  }
};

// act(x + ...) + residual
template <class Act>
struct ActivatedTerm {
  Act act;
  template <class A>
  FUSECONV_INLINE A operator()(A x, A residual) const {
    return act(x) + residual;
  }
  template <class A>
  FUSECONV_INLINE A operator()(A x, A bias, A residual) const {
    return act(x + bias) + residual;
  }
};

// The arguments of the pass. z is the result of the convolution and may share its memory with the result of the pass.
struct ConvolutionPass {
  In z;
  std::optional<In> bias, residual;
  Activation activation;
  bool residual_first;
};

template <class Host>
void convolution_pass(Host& host, const ConvolutionPass& p, Out y) {
  const auto with_terms = [&](const auto&... terms) {
    if (p.residual && p.residual_first) {
      activated_pointwise<ActivatedSum>(host, p.activation, y, p.z, terms..., *p.residual);
    } else if (p.residual) {
      activated_pointwise<ActivatedTerm>(host, p.activation, y, p.z, terms..., *p.residual);
    } else if (p.activation != Activation::none || sizeof...(terms) > 0 || p.z.data != y.data) {
      activated_pointwise<ActivatedSum>(host, p.activation, y, p.z, terms...);
    }
  };
  if (p.bias) {
    int64_t sizes[kMaxRank] = {p.bias->sizes[0]}, strides[kMaxRank] = {p.bias->strides[0]};
    std::fill(sizes + 1, sizes + y.rank, 1);
    with_terms(In{p.bias->data, p.bias->dtype, y.rank - 1, sizes, strides});  // [O, 1, ...]
  } else {
    with_terms();
  }
}

}  // namespace fuseconv
