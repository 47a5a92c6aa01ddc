#include "packages.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "fuseconv/error.h"
#include "runner.h"

namespace fuseconv::runtime {
namespace {

// torch's names for the x86 CPU instruction sets. Each is a superset of the previous ones.
constexpr std::array<std::string_view, 4> kIsa = {"DEFAULT", "NO AVX", "AVX2", "AVX512"};

// Returns the major and minor numbers of a version, which determine formats and ABIs.
std::pair<int, int> release(const std::string& version) {
  size_t length = 0;
  const int major = std::stoi(version, &length);
  return {major, length < version.size() ? std::stoi(version.substr(length + 1)) : 0};
}

// Returns how many instruction sets a processor with the named set has, or 0 for a set that is not in kIsa.
size_t instructions(const std::string& cpu) {
  const auto found = std::find(kIsa.begin(), kIsa.end(), cpu);
  return found == kIsa.end() ? 0 : static_cast<size_t>(found - kIsa.begin()) + 1;
}

bool includes(const std::string& here, const std::string& made) {
  return instructions(here) > 0 && instructions(made) > 0 ? instructions(made) <= instructions(here) : here == made;
}

std::string machine() {
  utsname system;
  uname(&system);
  return system.machine;
}

// Appends a problem to others.
void add(std::string& problems, const std::string& problem) {
  problems += (problems.empty() || problem.empty() ? "" : "; ") + problem;
}

// Returns the hardware for which an artifact was built and which this machine is not, or an empty string.
std::string architecture_problems(const Package& package, const std::string& gpu) {
  const Environment& made = package.environment;
  std::string problems;
  if (made.machine != machine()) {
    add(problems, "a " + made.machine + " machine, but this is " + machine());
  }
  if (made.gpu.value_or("") != gpu) {
    add(problems, "GPU architecture " + made.gpu.value_or("None") + ", but this is " + (gpu.empty() ? "None" : gpu));
  }
  if (package.target == "aoti" && !includes(torch_cpu(), made.cpu)) {
    add(problems, "a CPU with " + made.cpu + ", but this one has " + torch_cpu());
  }
  return problems;
}

// Returns the newer torch or ONNX Runtime with which an artifact was built, or an empty string.
std::string version_problems(const Package& package) {
  const Environment& made = package.environment;
  if (is_onnx(package.target)) {
    const std::string wrote = made.onnxruntime.value_or("0.0"), here = onnxruntime_version();
    return release(wrote) > release(here) ? "ONNX Runtime " + wrote + ", but this is " + here : "";
  }
  return release(made.torch) > release(torch_version()) ? "torch " + made.torch + ", but this is " + torch_version()
                                                        : "";
}

std::string reason(const Package& package, const std::string& gpu) {
  std::string problems = architecture_problems(package, gpu);
  add(problems, version_problems(package));
  return problems;
}

// Returns the name of the architecture for which machine code of a machine is compiled, such as "sm_90" or
// "x86_64-avx512".
std::string architecture(const std::string& machine, const std::string& cpu, const std::string& gpu) {
  std::string name = gpu.empty() ? cpu : gpu;
  std::erase_if(name, [](char letter) { return letter == ' ' || letter == '.'; });
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return gpu.empty() ? machine + "-" + name : "sm_" + name;
}

std::vector<Package> packages_of(const Manifest& manifest, const std::string& target) {
  std::vector<Package> packages = {{target, manifest.targets.at(target), manifest.environment}};
  std::copy_if(manifest.packages.begin(), manifest.packages.end(), std::back_inserter(packages),
               [&](const Package& package) { return package.target == target; });
  return packages;
}

// Returns what the packages of a target were built for.
std::string why_none(const std::vector<Package>& packages, const std::string& gpu) {
  const std::string target = packages.front().target;
  if (packages.size() == 1) {
    return "the target " + target + " was built for " + reason(packages.front(), gpu);
  }
  const std::string here = architecture(machine(), torch_cpu(), gpu);
  std::string names;
  for (const Package& package : packages) {
    const Environment& made = package.environment;
    const std::string name = architecture(made.machine, made.cpu, made.gpu.value_or(""));
    names += (names.empty() ? "" : ", ") + name + (name == here ? " (" + reason(package, gpu) + ")" : "");
  }
  return "the target " + target + " has packages for " + names + ", but this machine is " + here;
}

std::string fix(const std::vector<Package>& packages, const std::string& gpu) {
  const Environment& first = packages.front().environment;
  const bool is_same_kind = first.machine == machine() && first.gpu.has_value() == !gpu.empty();
  const bool is_old = std::any_of(packages.begin(), packages.end(),
                                  [](const Package& package) { return !version_problems(package).empty(); });
  return packages.front().target == "aoti" && is_same_kind && !is_old
             ? "run `fuseconv add BUNDLE` on this machine, or load another target"
             : "convert the model on this machine";
}

}  // namespace

bool is_onnx(const std::string& target) { return target == "onnx" || target == "onnx-plugin"; }

Package package_here(const Manifest& manifest, const std::string& target, const std::string& gpu,
                     const std::filesystem::path& folder) {
  const std::vector<Package> packages = packages_of(manifest, target);
  const Package* found = nullptr;
  for (const Package& package : packages) {
    if (reason(package, gpu).empty() &&
        (found == nullptr || instructions(package.environment.cpu) > instructions(found->environment.cpu))) {
      found = &package;
    }
  }
  if (found == nullptr) {
    throw Error(Kind::unsupported, why_none(packages, gpu), folder.string(), fix(packages, gpu));
  }
  return *found;
}

bool is_for_others(const Manifest& manifest, const std::string& target, const std::string& gpu) {
  const std::vector<Package> packages = packages_of(manifest, target);
  return std::all_of(packages.begin(), packages.end(),
                     [&](const Package& package) { return !architecture_problems(package, gpu).empty(); });
}

}  // namespace fuseconv::runtime
