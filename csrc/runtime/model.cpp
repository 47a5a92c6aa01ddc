#include "fuseconv/model.h"

#include <dlfcn.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <vector>

#include "bundle.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::array kPreference = {"aoti", "torchscript", "onnx-plugin", "onnx"};

// torch's names for the x86 CPU instruction sets. Each is a superset of the previous ones.
constexpr std::array<std::string_view, 4> kIsa = {"DEFAULT", "NO AVX", "AVX2", "AVX512"};

bool is_onnx(const std::string& target) { return target == "onnx" || target == "onnx-plugin"; }

// Returns the message of an exception without LibTorch's backtrace, as Python shows it.
std::string message(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from "));
}

// Returns the major and minor numbers of a version, which determine formats and ABIs.
std::pair<int, int> release(const std::string& version) {
  size_t length = 0;
  const int major = std::stoi(version, &length);
  return {major, length < version.size() ? std::stoi(version.substr(length + 1)) : 0};
}

bool includes(const std::string& here, const std::string& made) {
  const auto of_here = std::find(kIsa.begin(), kIsa.end(), here), of_made = std::find(kIsa.begin(), kIsa.end(), made);
  return of_here != kIsa.end() && of_made != kIsa.end() ? of_made <= of_here : here == made;
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
// device or, if there is none, the first of kPreference that the bundle contains. Throws Error of kind usage if the
// bundle does not contain such a target.
std::string choose_target(const Manifest& manifest, const std::string& wanted, const fs::path& folder) {
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
  if (const auto found = std::find_if(order.begin(), order.end(), is_there); found != order.end()) {
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

void check_environment(const Manifest& manifest, const std::string& target, const fs::path& folder) {
  const Environment& made = manifest.environment;
  const std::string gpu = manifest.contract.device == "cuda" ? first_gpu(folder).architecture : "";
  std::string problems;
  const auto add = [&](const std::string& problem) { problems += (problems.empty() ? "" : "; ") + problem; };
  utsname system;
  uname(&system);
  if (made.machine != system.machine) {
    add("a " + made.machine + " machine, but this is " + system.machine);
  }
  if (made.gpu.value_or("") != gpu) {
    add("GPU architecture " + made.gpu.value_or("None") + ", but this is " + (gpu.empty() ? "None" : gpu));
  }
  if (is_onnx(target)) {
    const std::string wrote = made.onnxruntime.value_or("0.0"), here = onnxruntime_version();
    if (release(wrote) > release(here)) {
      add("ONNX Runtime " + wrote + ", but this is " + here);
    }
  } else if (release(made.torch) > release(torch_version())) {
    add("torch " + made.torch + ", but this is " + torch_version());
  }
  if (target == "aoti" && !includes(torch_cpu(), made.cpu)) {
    add("a CPU with " + made.cpu + ", but this one has " + torch_cpu());
  }
  if (!problems.empty()) {
    throw Error(Kind::unsupported, "the target " + target + " was built for " + problems, folder.string(),
                "convert the model on this machine");
  }
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

std::unique_ptr<Runner> load_target(const Manifest& manifest, const std::string& target, const fs::path& folder,
                                    const Options& options, const std::shared_ptr<SharedWeights>& weights) {
  const fs::path artifact = folder / manifest.targets.at(target);
  const std::vector<fs::path> libraries = op_libraries(manifest, target, folder);
  check_private(folder, manifest.targets.at(target), libraries);
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
  model.target_ = choose_target(manifest, target, folder);
  model.ungraphed_ = ungraphed_reason(options.cuda_graphs, model.contract_.device, model.target_);
  check_environment(manifest, model.target_, folder);
  try {
    const Capture capture = model.ungraphed_.empty() ? options.cuda_graphs : Capture::off;
    model.runner_ = load_target(manifest, model.target_, folder, {capture, options.cuda_graphs_memory}, weights);
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
  std::vector<Tensor> outputs;
  try {
    outputs = runner_->run(ordered);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string shapes;
    for (const Tensor* input : ordered) {
      shapes += (shapes.empty() ? "" : ", ") + shape_text(input->shape);
    }
    throw Error(Kind::upstream, "the target " + target_ + " failed: " + message(error), "a call with " + shapes,
                "try another target, or smaller inputs if memory ran out");
  }
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i) {
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
