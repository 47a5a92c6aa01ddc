// TorchScript and AOTInductor, by LibTorch.
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <cstring>

#include "fuseconv/error.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"f64", at::kDouble}, {"f32", at::kFloat}, {"f16", at::kHalf}, {"bf16", at::kBFloat16}, {"i64", at::kLong},
    {"i32", at::kInt},    {"i16", at::kShort}, {"i8", at::kChar},  {"u8", at::kByte},       {"bool", at::kBool},
};

at::Tensor to_torch(const Tensor& tensor, const std::string& device) {
  at::ScalarType type = at::kFloat;
  for (const auto& [name, known] : kDtypes) {
    type = tensor.dtype == name ? known : type;
  }
  const at::Tensor host = at::empty(tensor.shape, at::TensorOptions().dtype(type));
  std::memcpy(host.mutable_data_ptr(), tensor.data.data(), tensor.data.size());
  return host.to(at::Device(device));
}

Tensor from_torch(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  Tensor result{"", host.sizes().vec(), std::vector<char>(host.nbytes())};
  for (const auto& [name, known] : kDtypes) {
    result.dtype = host.scalar_type() == known ? name : result.dtype;
  }
  std::memcpy(result.data.data(), host.const_data_ptr(), host.nbytes());
  return result;
}

std::vector<Tensor> from_torch(const std::vector<at::Tensor>& tensors) {
  std::vector<Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(from_torch(tensor));
  }
  return results;
}

class TorchScript final : public Runner {
 public:
  TorchScript(const std::filesystem::path& artifact, const Contract& contract)
      : device_(contract.device), module_(torch::jit::load(artifact.string(), at::Device(device_))) {}

  std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) override {
    const c10::InferenceMode guard;
    std::vector<c10::IValue> values;
    for (const Tensor* input : inputs) {
      values.emplace_back(to_torch(*input, device_));
    }
    std::vector<at::Tensor> outputs;
    const c10::IValue result = module_.forward(values);
    for (const c10::IValue& value : result.toTupleRef().elements()) {
      outputs.push_back(value.toTensor());
    }
    return from_torch(outputs);
  }

 private:
  std::string device_;
  torch::jit::Module module_;
};

class Aoti final : public Runner {
 public:
  Aoti(const std::filesystem::path& artifact, const Contract& contract)
      : device_(contract.device), package_(artifact.string()) {}

  std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) override {
    const c10::InferenceMode guard;
    std::vector<at::Tensor> values;
    for (const Tensor* input : inputs) {
      values.push_back(to_torch(*input, device_));
    }
    return from_torch(package_.run(values));
  }

 private:
  std::string device_;
  torch::inductor::AOTIModelPackageLoader package_;
};

}  // namespace

std::string torch_version() { return TORCH_VERSION; }

std::string torch_cpu() { return at::get_cpu_capability(); }

void load_torch_library(const std::filesystem::path& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw Error(Kind::unsupported, std::string("the op library does not load: ") + dlerror(), path.string(),
                "use the fuseconv that wrote the bundle, or convert the model again");
  }
}

std::unique_ptr<Runner> torchscript(const std::filesystem::path& artifact, const Contract& contract) {
  return std::make_unique<TorchScript>(artifact, contract);
}

std::unique_ptr<Runner> aoti(const std::filesystem::path& artifact, const Contract& contract) {
  return std::make_unique<Aoti>(artifact, contract);
}

}  // namespace fuseconv::runtime
