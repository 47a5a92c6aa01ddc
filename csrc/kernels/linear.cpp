#include "kernels/linear.h"

#include "core/scratch.h"
#include "kernels/gated.h"
#include "kernels/pointwise.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

template <class Act, bool kResidualFirst>
struct Epilogue {
  Act act;

  template <class A>
  FUSECONV_INLINE A operator()(A product) const {
    return act(product);
  }
  template <class A>
  FUSECONV_INLINE A operator()(A product, A residual) const {
    return kResidualFirst ? act(product + residual) : act(product) + residual;
  }
};

void gated_layer(CpuHost& host, const LinearLayer& layer) {
  Spec spec = contiguous_like(layer.x);
  spec.sizes[spec.rank - 1] = layer.weight.sizes[0];
  spec = contiguous_like(spec);
  const Out z = in_scratch(host, spec);
  host.linear(layer.x, layer.weight, layer.bias, z);
  const Halves<In> halves(z);
  activated_pointwise<Gated>(host, layer.activation, layer.y, halves.gate, halves.up);
}

}  // namespace

void linear_layer(CpuHost& host, const LinearLayer& layer) {
  if (layer.gated) {
    return gated_layer(host, layer);
  }
  host.linear(layer.x, layer.weight, layer.bias, layer.y);
  if (layer.activation == Activation::none && !layer.residual) {
    return;
  }
  dispatch(layer.activation, [&]<class Act>(Act act) {
    if (!layer.residual) {
      pointwise(host, Epilogue<Act, false>{act}, layer.y, In(layer.y));
    } else if (layer.residual_first) {
      pointwise(host, Epilogue<Act, true>{act}, layer.y, In(layer.y), *layer.residual);
    } else {
      pointwise(host, Epilogue<Act, false>{act}, layer.y, In(layer.y), *layer.residual);
    }
  });
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
