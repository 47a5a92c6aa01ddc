#include "core/scratch.h"

#include "core/layout.h"

namespace fuseconv {

Out in_scratch(Host& host, const Spec& spec) {
  void* const data = host.scratch(static_cast<size_t>(element_count(spec) * size_of(spec.dtype)));
  return {data, spec.dtype, spec.rank, spec.sizes, spec.strides};
}

}  // namespace fuseconv
