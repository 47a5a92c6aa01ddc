// Calls a host's convolution, which pads both sides of a dim equally, for a convolution with unequal padding.
#pragma once

#include <algorithm>
#include <array>

#include "core/layout.h"
#include "core/scratch.h"
#include "kernels/convolution.h"
#include "kernels/pointwise.h"

namespace fuseconv {

struct Zero {
  template <class A>
  FUSECONV_INLINE A operator()(A) const {
    return A(0);
  }
};
struct Same {
  template <class A>
  FUSECONV_INLINE A operator()(A x) const {
    return x;
  }
};

// Runs the host's convolution and returns its result. If the padding of the two sides of a dim differs, first copies x
// into a scratch buffer with the zeros around it.
template <class Host>
In host_convolution(Host& host, const Convolution& c, std::optional<In> bias) {
  ConvolutionParameters parameters = c.parameters;
  if (std::ranges::equal(parameters.padding, parameters.padding_after)) {
    return host.convolution(c.x, c.weight, bias, parameters);
  }
  const std::array<int64_t, kMaxRank> none{};
  int64_t sizes[kMaxRank];
  std::copy_n(c.x.sizes, c.x.rank, sizes);
  for (size_t i = 0; i < parameters.padding.size(); ++i) {
    sizes[i + 2] += parameters.padding[i] + parameters.padding_after[i];
  }
  const Spec spec = fits_channels_last(c.x) || is_channels_last(c.x) ? channels_last(c.x.dtype, c.x.rank, sizes)
                                                                     : contiguous(c.x.dtype, c.x.rank, sizes);
  const Out padded = in_scratch(host, spec);
  pointwise(host, Zero{}, padded, In(padded));
  int64_t offset = 0;
  for (size_t i = 0; i < parameters.padding.size(); ++i) {
    offset += parameters.padding[i] * spec.strides[i + 2];
  }
  void* const inside = static_cast<char*>(padded.data) + offset * size_of(spec.dtype);
  pointwise(host, Same{}, {inside, spec.dtype, spec.rank, c.x.sizes, spec.strides}, c.x);
  parameters.padding = parameters.padding_after = std::span(none).first(parameters.padding.size());
  return host.convolution(padded, c.weight, bias, parameters);
}

}  // namespace fuseconv
