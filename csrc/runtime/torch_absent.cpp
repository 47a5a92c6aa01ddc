// Replaces torch_runner.cpp in a runtime built without LibTorch.
#include "fuseconv/error.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

[[noreturn]] void absent() {
  throw Error(Kind::unsupported, "this program was built without LibTorch", "the targets aoti and torchscript",
              "build it with find_package(fuseconv COMPONENTS torch), or use --target onnx");
}

}  // namespace

std::string torch_version() { absent(); }
std::string torch_cpu() { absent(); }
void load_torch_library(const std::filesystem::path&) { absent(); }
std::shared_ptr<SharedWeights> share_weights() { return nullptr; }
std::unique_ptr<Runner> torchscript(const std::filesystem::path&, const Contract&, const Options&,
                                    const std::shared_ptr<SharedWeights>&) {
  absent();
}
std::unique_ptr<Runner> aoti(const std::filesystem::path&, const Contract&, const Options&,
                             const std::shared_ptr<SharedWeights>&) {
  absent();
}

}  // namespace fuseconv::runtime
