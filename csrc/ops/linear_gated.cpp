#include "ops/linear_gated.h"

#include "kernels/pointwise.h"

namespace fuseconv {

template <class Isa>
void LinearGated::cpu(CpuHost& host, In x, In weight, std::optional<In> bias, std::string_view act, Out y) {
  const Spec z = product_of(x, weight);
  const int64_t half = y.sizes[y.rank - 1] * size_of(y.dtype);
  char* data = static_cast<char*>(host.scratch(static_cast<size_t>(element_count(z) * size_of(y.dtype))));
  host.linear(x, weight, bias, {data, z.dtype, z.rank, z.sizes, z.strides});
  const In gate{data, y.dtype, y.rank, y.sizes, z.strides}, up{data + half, y.dtype, y.rank, y.sizes, z.strides};
  dispatch(parse_activation(name, act), [&]<class Act>(Act) { pointwise(host, Formula<Act>{}, y, gate, up); });
}

template void LinearGated::cpu<isa::FUSECONV_ISA>(CpuHost&, In, In, std::optional<In>, std::string_view, Out);

}  // namespace fuseconv
