// Replaces cuda_graphs.cpp in a runtime built with a LibTorch without CUDA.
#include "fuseconv/error.h"
#include "graphed_call.h"

namespace fuseconv::runtime {

std::unique_ptr<GraphedCall> graphed(Call, const Contract&, bool, std::optional<int64_t>) {
  throw Error(Kind::unsupported, "this program was built without CUDA", "cuda_graphs",
              "build it against a LibTorch that has CUDA");
}

}  // namespace fuseconv::runtime
