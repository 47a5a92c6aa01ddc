// Replaces onnx_runner.cpp in a runtime built without ONNX Runtime's header.
#include "fuseconv/error.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

[[noreturn]] void absent() {
  throw Error(Kind::unsupported, "this program was built without ONNX Runtime", "the targets onnx and onnx-plugin",
              "build it with find_package(fuseconv COMPONENTS onnx), or use --target torchscript");
}

}  // namespace

std::string onnxruntime_version() { absent(); }
std::unique_ptr<Runner> onnx(const std::filesystem::path&, const std::filesystem::path&, const Contract&) { absent(); }

}  // namespace fuseconv::runtime
