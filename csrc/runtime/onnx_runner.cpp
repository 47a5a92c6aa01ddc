// Runs ONNX artifacts through ONNX Runtime's C API. The library is loaded with dlopen, so that a program that runs no
// ONNX does not need it.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "files.h"
#include "fuseconv/error.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

constexpr uint32_t kApiVersion = 17;  // the same version as the plugin, csrc/bind/ort.h

constexpr std::pair<const char*, ONNXTensorElementDataType> kDtypes[] = {
    {"f64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},  {"f32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {"f16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16}, {"bf16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {"i64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},   {"i32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {"i16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},   {"i8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {"u8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},    {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
};

const OrtApiBase& base() {
  static const OrtApiBase* const found = [] {
    const char* named = std::getenv("FUSECONV_ONNXRUNTIME");
    const char* path = named != nullptr ? named : "libonnxruntime.so";
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    using Get = const OrtApiBase* (*)();
    const auto get = library == nullptr ? nullptr : reinterpret_cast<Get>(dlsym(library, "OrtGetApiBase"));
    if (get == nullptr) {
      throw Error(Kind::unsupported, std::string("ONNX Runtime failed to load: ") + dlerror(), "the target onnx",
                  "set FUSECONV_ONNXRUNTIME to the path of libonnxruntime.so");
    }
    return get();
  }();
  return *found;
}

const OrtApi& api() {
  static const OrtApi* const found = base().GetApi(kApiVersion);
  if (found == nullptr) {
    throw Error(
        Kind::unsupported,
        std::string("ONNX Runtime ") + base().GetVersionString() + " is older than 1." + std::to_string(kApiVersion),
        "the target onnx", "install a newer one");
  }
  return *found;
}

// Returns the message and code of an error status, and releases the status.
std::pair<std::string, OrtErrorCode> taken(OrtStatus* status) {
  const std::pair<std::string, OrtErrorCode> error(api().GetErrorMessage(status), api().GetErrorCode(status));
  api().ReleaseStatus(status);
  return error;
}

// Throws if the status is an error: Error of kind unsupported if ONNX Runtime has no kernel for a node, otherwise an
// exception to which Model adds the context.
void check(OrtStatus* status, const std::string& where) {
  if (status == nullptr) {
    return;
  }
  const auto [message, code] = taken(status);
  if (code == ORT_NOT_IMPLEMENTED) {
    throw Error(Kind::unsupported,
                std::string("ONNX Runtime ") + base().GetVersionString() + " has no kernel: " + message, where,
                "leave the target onnx out, or convert with --dtype f32");
  }
  throw std::runtime_error("ONNX Runtime: " + message);
}

// Owns an object of the C API, and releases it with its release function.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

class Onnx final : public Runner {
 public:
  Onnx(const std::filesystem::path& artifact, const std::filesystem::path& library, const Contract& contract)
      : contract_(contract), where_(artifact.string()), env_(make_env()), session_(nullptr, api().ReleaseSession) {
    OrtSessionOptions* made;
    check(api().CreateSessionOptions(&made), where_);
    const Owned<OrtSessionOptions> options(made, api().ReleaseSessionOptions);
    // Without this, ONNX Runtime's threads spin after a call and take CPU cores from the rest of the program.
    check(api().AddSessionConfigEntry(options.get(), "session.force_spinning_stop", "1"), where_);
    if (contract.device == "cuda") {
      OrtCUDAProviderOptionsV2* cuda;
      check(api().CreateCUDAProviderOptions(&cuda), where_);
      const Owned<OrtCUDAProviderOptionsV2> kept(cuda, api().ReleaseCUDAProviderOptions);
      const char *name = "use_tf32", *value = "0";  // PyTorch multiplies f32 in f32
      check(api().UpdateCUDAProviderOptions(cuda, &name, &value, 1), where_);
      check(api().SessionOptionsAppendExecutionProvider_CUDA_V2(options.get(), cuda), where_);
    }
    if (!library.empty()) {
      if (OrtStatus* status = api().RegisterCustomOpsLibrary_V2(options.get(), library.c_str()); status != nullptr) {
        throw Error(Kind::unsupported,
                    std::string("ONNX Runtime ") + base().GetVersionString() +
                        " failed to load the op library: " + taken(status).first,
                    library.string(),
                    "leave the target onnx-plugin out, or use the ONNX Runtime of the machine that wrote the bundle");
      }
    }
    OrtSession* session;
    const std::filesystem::path folder = weights_folder(artifact.parent_path());
    if (folder == artifact.parent_path()) {
      check(api().CreateSession(env_.get(), artifact.c_str(), options.get(), &session), where_);
    } else {  // the data of a model that is passed as bytes may be in any folder
      constexpr const char* kFolder = "session.model_external_initializers_file_folder_path";
      check(api().AddSessionConfigEntry(options.get(), kFolder, folder.c_str()), where_);
      std::ifstream file(artifact, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      check(api().CreateSessionFromArray(env_.get(), bytes.data(), bytes.size(), options.get(), &session), where_);
    }
    session_.reset(session);
  }

  std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) override {
    std::vector<Owned<OrtValue>> owners;
    std::vector<const OrtValue*> values;
    std::vector<const char*> names, output_names;
    for (size_t i = 0; i < inputs.size(); ++i) {
      owners.push_back(to_value(*inputs[i]));
      values.push_back(owners.back().get());
      names.push_back(contract_.inputs[i].name.c_str());
    }
    for (const std::string& name : contract_.outputs) {
      output_names.push_back(name.c_str());
    }
    std::vector<OrtValue*> results(output_names.size(), nullptr);
    check(api().Run(session_.get(), nullptr, names.data(), values.data(), values.size(), output_names.data(),
                    output_names.size(), results.data()),
          where_);
    std::vector<Owned<OrtValue>> kept;
    for (OrtValue* result : results) {
      kept.emplace_back(result, api().ReleaseValue);
    }
    std::vector<Tensor> outputs;
    for (const Owned<OrtValue>& result : kept) {
      outputs.push_back(from_value(result.get()));
    }
    return outputs;
  }

 private:
  static Owned<OrtEnv> make_env() {
    OrtEnv* env;
    check(api().CreateEnv(ORT_LOGGING_LEVEL_ERROR, "fuseconv", &env), "CreateEnv");
    return {env, api().ReleaseEnv};
  }

  Owned<OrtValue> to_value(const Tensor& tensor) const {
    OrtMemoryInfo* made;
    check(api().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &made), where_);
    const Owned<OrtMemoryInfo> memory(made, api().ReleaseMemoryInfo);
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    for (const auto& [name, known] : kDtypes) {
      type = tensor.dtype == name ? known : type;
    }
    OrtValue* value;
    check(api().CreateTensorWithDataAsOrtValue(memory.get(), const_cast<char*>(tensor.data.data()), tensor.data.size(),
                                               tensor.shape.data(), tensor.shape.size(), type, &value),
          where_);
    return {value, api().ReleaseValue};
  }

  // Returns a copy of an output. ONNX Runtime allocates outputs that are not bound in host memory.
  Tensor from_value(OrtValue* value) const {
    OrtTensorTypeAndShapeInfo* made;
    check(api().GetTensorTypeAndShape(value, &made), where_);
    const Owned<OrtTensorTypeAndShapeInfo> info(made, api().ReleaseTensorTypeAndShapeInfo);
    ONNXTensorElementDataType type;
    size_t rank, count;
    check(api().GetTensorElementType(info.get(), &type), where_);
    check(api().GetDimensionsCount(info.get(), &rank), where_);
    check(api().GetTensorShapeElementCount(info.get(), &count), where_);
    Tensor tensor{"", std::vector<int64_t>(rank), {}};
    check(api().GetDimensions(info.get(), tensor.shape.data(), rank), where_);
    for (const auto& [name, known] : kDtypes) {
      tensor.dtype = type == known ? name : tensor.dtype;
    }
    void* data;
    check(api().GetTensorMutableData(value, &data), where_);
    tensor.data.resize(count * static_cast<size_t>(element_size(tensor.dtype)));
    std::memcpy(tensor.data.data(), data, tensor.data.size());
    return tensor;
  }

  Contract contract_;
  std::string where_;
  Owned<OrtEnv> env_;
  Owned<OrtSession> session_;
};

}  // namespace

std::string onnxruntime_version() { return base().GetVersionString(); }

std::unique_ptr<Runner> onnx(const std::filesystem::path& artifact, const std::filesystem::path& library,
                             const Contract& contract) {
  return std::make_unique<Onnx>(artifact, library, contract);
}

}  // namespace fuseconv::runtime
