#include "fuseconv/model.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include "bundle.h"
#include "packages.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::array kPreference = {"aoti", "torchscript", "onnx-plugin", "onnx"};

// Returns the message of an exception without LibTorch's backtrace, as Python shows it.
std::string message(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from "));
}

struct Gpu {
  std::string architecture;  // the compute capability, such as "9.0"
  std::string name;
};

// Returns the properties of the first GPU. Queries the CUDA driver, because no CUDA runtime is loaded yet. Throws Error
// of kind upstream if no CUDA device is available.
Gpu first_gpu(const fs::path& folder) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto call = [&](const char* name, auto... arguments) {
    const auto function =
        driver == nullptr ? nullptr : reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name));
    if (function == nullptr || function(arguments...) != 0) {
      throw Error(Kind::upstream, "no CUDA device is available", folder.string(),
                  "check nvidia-smi and that torch is a CUDA build, or convert the model with --device cpu");
    }
  };
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  int device, major, minor;
  std::array<char, 256> name{};
  call("cuInit", 0u);
  call("cuDeviceGet", &device, 0);
  call("cuDeviceGetAttribute", &major, kMajor, device);
  call("cuDeviceGetAttribute", &minor, kMinor, device);
  call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device);
  return {std::to_string(major) + "." + std::to_string(minor), name.data()};
}

// Returns the name of the GPU or the processor, as fuseconv/runtime/environment.py does, or an empty string if the name
// of the processor is not known.
std::string device_name(const std::string& device, const fs::path& folder) {
  if (device == "cuda") {
    return first_gpu(folder).name;
  }
  std::ifstream processors("/proc/cpuinfo");
  for (std::string line; std::getline(processors, line);) {
    if (line.starts_with("model name")) {
      const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);  // empty on some virtual machines
      return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
    }
  }
  return "";
}

// Returns the target to load: the wanted target or, if `wanted` is empty, the target that was measured fastest on this
// device or, if there is none, the first of kPreference that the bundle contains. Passes over the targets that were
// compiled only for other machines, unless this leaves none. Throws Error of kind usage if the bundle does not contain
// such a target.
std::string choose_target(const Manifest& manifest, const std::string& wanted, const std::string& gpu,
                          const fs::path& folder) {
  const auto is_there = [&](const std::string& name) {
    return manifest.targets.contains(name) &&
           std::find(kPreference.begin(), kPreference.end(), name) != kPreference.end();
  };
  std::vector<std::string> order;
  if (!wanted.empty()) {
    order = {wanted};
  } else if (!manifest.timed_on.empty() && manifest.timed_on == device_name(manifest.contract.device, folder)) {
    order = manifest.fastest;
  }
  if (wanted.empty()) {
    order.insert(order.end(), kPreference.begin(), kPreference.end());
  }
  const auto runs_here = [&](const std::string& name) {
    return is_there(name) && (!wanted.empty() || !is_for_others(manifest, name, gpu));
  };
  auto found = std::find_if(order.begin(), order.end(), runs_here);
  if (found == order.end()) {
    found = std::find_if(order.begin(), order.end(), is_there);
  }
  if (found != order.end()) {
    return *found;
  }
  std::string there;
  for (const char* name : kPreference) {
    if (manifest.targets.contains(name)) {
      there += (there.empty() ? "" : ", ") + std::string(name);
    }
  }
  throw Error(Kind::usage, "the bundle has no target" + (wanted.empty() ? "" : " " + wanted), folder.string(),
              "use one of " + there);
}

// Returns why a target runs without CUDA graphs, or an empty string if its calls are captured. Throws Error of kind
// usage if CUDA graphs are required but not available.
std::string ungraphed_reason(Capture capture, const std::string& device, const std::string& target) {
  if (capture == Capture::off) {
    return "cuda_graphs is off";
  }
  std::string reason, fix;
  if (device != "cuda") {
    reason = "the bundle is for " + device;
    fix = "convert with --device cuda, or do not set cuda_graphs";
  } else if (is_onnx(target)) {
    reason = "the target " + target + " does not support CUDA graphs";
    fix = "use aoti or torchscript, or do not set cuda_graphs";
  }
  if (!reason.empty() && capture == Capture::on) {
    throw Error(Kind::usage, "CUDA graphs cannot be used: " + reason, "cuda_graphs", fix);
  }
  return reason;
}

// Returns the paths of the libraries that a target calls, in load order. The list is empty for the onnx target.
std::vector<fs::path> op_libraries(const Manifest& manifest, const std::string& target, const fs::path& folder) {
  std::vector<fs::path> libraries;
  if (target == "onnx-plugin") {
    libraries.push_back(folder / "lib" / ("libfuseconv_ort_" + manifest.contract.device + ".so"));
    if (!fs::is_regular_file(libraries.front())) {
      throw Error(Kind::refused, "the op library for ONNX Runtime is missing", libraries.front().string(),
                  "copy the bundle again");
    }
  } else if (target != "onnx") {
    for (const std::string& library : manifest.libraries) {
      libraries.push_back(folder / library);
    }
  }
  return libraries;
}

std::unique_ptr<Runner> load_package(const Manifest& manifest, const Package& package, const fs::path& folder,
                                     const Options& options, const std::shared_ptr<SharedWeights>& weights) {
  const fs::path artifact = folder / package.path;
  const std::string& target = package.target;
  const std::vector<fs::path> libraries = op_libraries(manifest, target, folder);
  check_private(folder, package.path, libraries);
  if (is_onnx(target)) {
    return onnx(artifact, libraries.empty() ? fs::path() : libraries.front(), manifest.contract);
  }
  std::for_each(libraries.begin(), libraries.end(), load_torch_library);
  return (target == "aoti" ? aoti : torchscript)(artifact, manifest.contract, options, weights);
}

}  // namespace

Model Model::load(const fs::path& bundle, const std::string& target, const Options& options) {
  const fs::path folder = fs::absolute(bundle);
  return load(folder, open_bundle(folder), target, options, share_weights());
}

std::map<std::string, Model> Model::load_methods(const fs::path& bundle, const std::string& target,
                                                 const Options& options) {
  const fs::path folder = fs::absolute(bundle);
  const std::shared_ptr<SharedWeights> weights = share_weights();
  std::map<std::string, Model> methods;
  for (const std::string& name : open_methods(folder)) {
    const fs::path method = folder / "methods" / name;
    methods.emplace(name, load(method, open_bundle(method, false), target, options, weights));
  }
  return methods;
}

Model Model::load(const fs::path& folder, const Manifest& manifest, const std::string& target, const Options& options,
                  const std::shared_ptr<SharedWeights>& weights) {
  Model model;
  model.contract_ = manifest.contract;
  const std::string gpu = manifest.contract.device == "cuda" ? first_gpu(folder).architecture : "";
  model.target_ = choose_target(manifest, target, gpu, folder);
  model.ungraphed_ = ungraphed_reason(options.cuda_graphs, model.contract_.device, model.target_);
  const Package package = package_here(manifest, model.target_, gpu, folder);
  try {
    const Capture capture = model.ungraphed_.empty() ? options.cuda_graphs : Capture::off;
    model.runner_ = load_package(manifest, package, folder, {capture, options.cuda_graphs_memory}, weights);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Kind::upstream, "the target " + model.target_ + " failed to load: " + message(error), folder.string(),
                "convert the model on this machine");
  }
  return model;
}

NamedTensors Model::operator()(const NamedTensors& inputs) const {
  const std::vector<const Tensor*> ordered = contract_.bind(inputs);
  return named(computed(ordered, [&] { return runner_->run(ordered); }), {});
}

State Model::zero_state(const std::map<std::string, int64_t>& sizes) const {
  return state(contract_.zero_state(sizes));
}

State Model::state(NamedTensors tensors) const { return State(runner_->hold(std::move(tensors))); }

NamedTensors Model::advance(State& state, const NamedTensors& inputs) const {
  const NamedTensors shapes = state.held_->shapes();
  const std::vector<const Tensor*> ordered = contract_.bind(inputs, shapes);
  if (!runner_->holds(*state.held_)) {  // the state of a method that another library runs
    state.held_ = runner_->hold(state.held_->snapshot());
  }
  auto outputs = computed(ordered, [&] { return runner_->advance(contract_, *state.held_, ordered); });
  return named(std::move(outputs), contract_.state_places());
}

template <typename Compute>
std::vector<Tensor> Model::computed(const std::vector<const Tensor*>& inputs, const Compute& compute) const {
  try {
    return compute();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string shapes;
    for (const Tensor* input : inputs) {
      shapes += (shapes.empty() ? "" : ", ") + shape_text(input->shape);
    }
    throw Error(Kind::upstream, "the target " + target_ + " failed: " + message(error), "a call with " + shapes,
                "try another target, or smaller inputs if memory ran out");
  }
}

NamedTensors Model::named(std::vector<Tensor> outputs, const std::vector<StatePlace>& left_out) const {
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (std::any_of(left_out.begin(), left_out.end(), [&](const StatePlace& place) { return place.output == i; })) {
      continue;
    }
    const std::string& name = contract_.outputs.at(i);
    if (outputs[i].dtype.empty()) {
      throw Error(Kind::unsupported,
                  "the output " + name + " has a dtype that the C++ runtime does not support, such as a complex one",
                  "the target " + target_, "run it from Python");
    }
    named[name] = std::move(outputs[i]);
  }
  return named;
}

CudaGraphs Model::cuda_graphs() const {
  return ungraphed_.empty() ? runner_->cuda_graphs() : CudaGraphs{{}, 0, ungraphed_};
}

}  // namespace fuseconv::runtime
