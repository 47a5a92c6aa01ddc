// Runs TorchScript and AOTInductor artifacts with LibTorch.
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <cstring>
#include <map>

#include "fuseconv/error.h"
#include "graphed_call.h"
#include "runner.h"
#include "weights.h"

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

// Returns the short name of a dtype, or an empty string if the runtime does not support it.
std::string dtype_of(const at::Tensor& tensor) {
  for (const auto& [name, known] : kDtypes) {
    if (tensor.scalar_type() == known) {
      return name;
    }
  }
  return "";
}

Tensor from_torch(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  Tensor result{dtype_of(host), host.sizes().vec(), std::vector<char>(host.nbytes())};
  std::memcpy(result.data.data(), host.const_data_ptr(), host.nbytes());
  return result;
}

// Returns the folder with the unpacked files of a package if torch can load it (from release 2.13 on) and it exists.
// Otherwise returns the package itself, which torch then unpacks.
std::filesystem::path unpacked(const std::filesystem::path& package) {
  constexpr bool kReadsFolders = TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13);
  for (const auto& entry : std::filesystem::directory_iterator(package.parent_path())) {
    if (kReadsFolders && entry.is_directory()) {
      return entry.path();
    }
  }
  return package;
}

std::vector<Tensor> from_torch(const std::vector<at::Tensor>& tensors) {
  std::vector<Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(from_torch(tensor));
  }
  return results;
}

// Returns a tensor whose memory an artifact can use: artifacts read contiguous, aligned memory.
at::Tensor dense(const at::Tensor& tensor) {
  constexpr uintptr_t kAlignment = 16;
  const at::Tensor contiguous = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % kAlignment == 0 ? contiguous : contiguous.clone();
}

// A state on the device of the artifacts.
class TorchState final : public DeviceState {
 public:
  NamedTensors snapshot() const override {
    NamedTensors copies;
    for (const auto& [name, tensor] : tensors) {
      copies[name] = from_torch(tensor);
    }
    return copies;
  }

  NamedTensors shapes() const override {
    NamedTensors found;
    for (const auto& [name, tensor] : tensors) {
      found[name] = {dtype_of(tensor), tensor.sizes().vec(), {}};
    }
    return found;
  }

  std::map<std::string, at::Tensor> tensors;
};

class TorchRunner final : public Runner {
 public:
  TorchRunner(Call call, const Contract& contract, const Options& options)
      : device_(contract.device),
        graphs_(options.cuda_graphs == Capture::off
                    ? nullptr
                    : graphed(call, contract, options.cuda_graphs == Capture::on, options.cuda_graphs_memory)),
        call_(std::move(call)) {}

  std::vector<Tensor> run(const std::vector<const Tensor*>& inputs) override {
    const c10::InferenceMode guard;
    std::vector<at::Tensor> values;
    for (const Tensor* input : inputs) {
      values.push_back(to_torch(*input, device_));
    }
    return from_torch(graphs_ ? graphs_->run(values) : call_(values));
  }

  std::unique_ptr<DeviceState> hold(NamedTensors tensors) const override {
    auto state = std::make_unique<TorchState>();
    for (const auto& [name, tensor] : tensors) {
      state->tensors[name] = to_torch(tensor, device_);
    }
    return state;
  }

  bool holds(const DeviceState& state) const override { return dynamic_cast<const TorchState*>(&state) != nullptr; }

  std::vector<Tensor> advance(const Contract& contract, DeviceState& state,
                              std::vector<const Tensor*> inputs) override {
    const c10::InferenceMode guard;
    auto& tensors = dynamic_cast<TorchState&>(state).tensors;
    std::vector<at::Tensor> values(inputs.size());
    const std::vector<StatePlace> places = contract.state_places();
    for (const StatePlace& place : places) {
      values[place.input] = tensors.at(place.name);  // the artifact may write the next state into it
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      values[i] = values[i].defined() ? values[i] : to_torch(*inputs[i], device_);
    }
    std::vector<at::Tensor> outputs = graphs_ ? graphs_->run(values) : call_(values);
    std::vector<Tensor> results(outputs.size());
    for (const StatePlace& place : places) {
      tensors[place.name] = dense(outputs[place.output]);
      outputs[place.output].reset();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      results[i] = outputs[i].defined() ? from_torch(outputs[i]) : Tensor();
    }
    return results;
  }

  CudaGraphs cuda_graphs() override { return graphs_ ? graphs_->status() : CudaGraphs(); }

 private:
  std::string device_;
  std::unique_ptr<GraphedCall> graphs_;
  Call call_;
};

}  // namespace

std::string torch_version() { return TORCH_VERSION; }

std::string torch_cpu() { return at::get_cpu_capability(); }

void load_torch_library(const std::filesystem::path& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(Kind::unsupported, std::string("the op library failed to load: ") + dlerror(), path.string(),
                "use the version of fuseconv that wrote the bundle, or convert the model again");
  }
  // Libraries of rule packs do not have this function.
  const auto conflict_of = reinterpret_cast<const char* (*)()>(dlsym(library, "fuseconv_conflict"));
  const char* conflict = conflict_of == nullptr ? nullptr : conflict_of();
  if (conflict != nullptr) {
    throw Error(Kind::unsupported, std::string("the op library registers no ops: ") + conflict, path.string(),
                "load the bundle in another process, or convert the models again with one version of fuseconv");
  }
}

std::shared_ptr<SharedWeights> share_weights() { return std::make_shared<SharedWeights>(); }

std::unique_ptr<Runner> torchscript(const std::filesystem::path& artifact, const Contract& contract,
                                    const Options& options, const std::shared_ptr<SharedWeights>& shared) {
  if (at::Device(contract.device).is_cuda()) {
    // From the second call on, TorchScript's fuser of pointwise ops compiles kernels. With CUDA 13, its kernels for
    // bfloat16 do not compile. torch has only one switch for the whole process.
    torch::jit::setTensorExprFuserEnabled(false);
  }
  const auto module =
      std::make_shared<torch::jit::Module>(torch::jit::load(artifact.string(), at::Device(contract.device)));
  if (const auto weights = weights_of_artifact(artifact, contract.device, *shared)) {
    for (const auto& [name, weight] : *weights) {
      module->setattr(name, weight);
    }
  }
  const auto call = [module](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs;
    const c10::IValue result = module->forward({inputs.begin(), inputs.end()});
    for (const c10::IValue& value : result.toTupleRef().elements()) {
      outputs.push_back(value.toTensor());
    }
    return outputs;
  };
  return std::make_unique<TorchRunner>(Call(call, false), contract, options);
}

std::unique_ptr<Runner> aoti(const std::filesystem::path& artifact, const Contract& contract, const Options& options,
                             const std::shared_ptr<SharedWeights>& shared) {
  // The calls are single-threaded, because a thread-safe package serializes its calls and makes the host wait for the
  // GPU between two calls, and a CUDA graph cannot contain such a wait.
  constexpr bool kSingleThreaded = true;
  using Package = torch::inductor::AOTIModelPackageLoader;
  auto weights = weights_of_artifact(artifact, contract.device, *shared);
  const auto end = [weights](Package* package) {
    delete package;
    // torch never releases its references to the weights
    for (const auto& [name, weight] : weights.value_or(Weights{})) {
      weight.unsafeGetTensorImpl()->release_resources();
    }
  };
  const std::shared_ptr<Package> package(new Package(unpacked(artifact).string(), "model", kSingleThreaded), end);
  if (weights) {
    // The flags mean: use the active buffer, require all constants, and do not copy them.
    package->load_constants(*weights, false, true, true);
  }
  const auto call = [package](const std::vector<at::Tensor>& inputs) { return package->run(inputs); };
  return std::make_unique<TorchRunner>(Call(call, true), contract, options);
}

}  // namespace fuseconv::runtime
