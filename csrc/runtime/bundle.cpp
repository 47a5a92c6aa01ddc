#include "bundle.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "files.h"
#include "fuseconv/error.h"
#include "sha256.h"

namespace fuseconv::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kSignature = "model.sig";
constexpr const char* kMethods = "methods";
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kAgain = "convert the model again, or copy the bundle again";

Error refused(const std::string& what, const fs::path& where) {
  return Error(Kind::refused, what, where.string(), kAgain);
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Checks that the manifest has the SHA-256 hash that it states. This is the hash of the text without the line that
// contains the hash. The text is canonical: keys are sorted, one per line.
void check_own_hash(const std::string& text, const std::string& hash, const fs::path& path) {
  const std::string line = " \"manifest_sha256\": \"" + hash + "\",\n";
  const size_t place = text.find(line);
  Sha256 sum;
  if (place != std::string::npos) {
    sum.add(text.data(), place);
    sum.add(text.data() + place + line.size(), text.size() - place - line.size());
  }
  if (place == std::string::npos || sum.digest() != hash) {
    throw refused(std::string(kManifest) + " is damaged: it was modified after it was written", path);
  }
}

struct File {
  std::string sha256;
  uint64_t size;
};

File measure(const fs::path& path) {
  if (fs::is_directory(path)) {
    return {"", 0};
  }
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(1 << 20);
  Sha256 sum;
  uint64_t size = 0;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())), file.gcount() > 0) {
    sum.add(piece.data(), static_cast<size_t>(file.gcount()));
    size += static_cast<uint64_t>(file.gcount());
  }
  return {sum.digest(), size};
}

// Adds every file and every empty folder below `folder` to `found`, by its path relative to the bundle. Leaves out the
// folders in `others`.
void walk(const fs::path& root, const fs::path& folder, std::map<std::string, fs::path>& found,
          const std::vector<fs::path>& others = {}) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (std::find(others.begin(), others.end(), entry.path()) != others.end()) {
      continue;
    }
    const fs::file_status status = entry.symlink_status();
    if (!fs::is_regular_file(status) && !fs::is_directory(status)) {
      throw refused(entry.path().filename().string() + " is not a plain file or folder", entry.path());
    }
    if (fs::is_directory(status) && !fs::is_empty(entry.path())) {
      walk(root, entry.path(), found, others);
    } else if (entry.path() != root / kManifest && entry.path() != root / kSignature) {
      found[entry.path().lexically_relative(root).generic_string()] = entry.path();
    }
  }
}

// Checks a file against its entry in a manifest.
void check_file(const std::string& name, const fs::path& path, const nlohmann::json& listed) {
  if (!fs::exists(path)) {
    throw refused(name + " is missing", path);
  }
  const File measured = measure(path);
  const uint64_t size = listed.at("size");
  if (measured.size != size) {
    throw refused(
        name + " has " + std::to_string(measured.size) + " bytes, but the manifest says " + std::to_string(size), path);
  }
  if (measured.sha256 != listed.at("sha256").get<std::string>()) {
    throw refused(name + " does not have the sha256 in the manifest", path);
  }
}

// Checks that the files in `found` are those in a manifest.
void compare(const fs::path& folder, const nlohmann::json& files, std::map<std::string, fs::path> found) {
  for (const auto& [name, file] : files.items()) {
    if (!found.contains(name)) {
      throw refused(name + " is missing", folder / name);
    }
    check_file(name, found[name], file);
  }
  for (const auto& [name, path] : found) {
    if (!files.contains(name)) {
      throw refused(name + " is not in the manifest", path);
    }
  }
}

// Reads a manifest, and checks its own hash, format and version.
nlohmann::json manifest_of(const fs::path& folder) {
  const fs::path path = folder / kManifest;
  const fs::file_status status = fs::symlink_status(path);
  if (!fs::exists(status)) {
    throw refused(std::string(kManifest) + " is missing: this is not a bundle", path);
  }
  if (const std::string odd = oddity(status); !odd.empty()) {
    throw refused(std::string(kManifest) + " is damaged: " + odd, path);
  }
  const std::string text = read(path);
  nlohmann::json value = nlohmann::json::parse(text);
  check_own_hash(text, value.at("manifest_sha256"), path);
  if (value.at("format") != "fuseconv bundle" || value.at("schema_version").get<int>() < 1 ||
      value.at("schema_version").get<int>() > 5) {
    throw refused(std::string(kManifest) + " is not supported by this version of fuseconv", path);
  }
  return value;
}

void require_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw Error(Kind::usage, std::string("the bundle ") + (fs::exists(folder) ? "is not a folder" : "does not exist"),
                folder.string(), "give the folder that `fuseconv convert` wrote");
  }
}

// Runs `reading`, which reads a manifest, and reports a manifest without the expected contents as a damaged one.
template <typename Reading>
auto read_from(const fs::path& folder, const Reading& reading) {
  try {
    return reading();
  } catch (const nlohmann::json::exception& error) {
    throw refused(std::string(kManifest) + " is damaged: " + error.what(), folder / kManifest);
  }
}

// Checks the weights of a method's bundle, which the manifest of the enclosing bundle lists.
void check_weights(const fs::path& method) {
  const fs::path bundle = weights_folder(method);
  if (bundle == method) {
    return;
  }
  const nlohmann::json value = manifest_of(bundle);
  for (const fs::path& path : {bundle / kWeights, method / kManifest}) {
    check_file(path.lexically_relative(bundle).generic_string(), path,
               value.at("files").at(path.lexically_relative(bundle).generic_string()));
  }
}

Contract contract_of(const nlohmann::json& value) {
  Contract contract;
  for (const auto& item : value.at("inputs")) {
    TensorSpec spec{item.at("name"), item.at("dtype"), {}};
    for (const auto& size : item.at("shape")) {
      spec.shape.push_back(size.is_object()
                               ? Size{0, size.at("name"), size.at("min"), size.at("max"), size.value("step", 1)}
                               : Size{size.get<int64_t>(), "", 0, 0, 1});
    }
    contract.inputs.push_back(std::move(spec));
  }
  contract.outputs = value.at("outputs").get<std::vector<std::string>>();
  contract.device = value.at("device");
  if (value.contains("state")) {
    contract.state = value["state"].get<std::map<std::string, std::string>>();
  }
  if (value.contains("buckets")) {
    const nlohmann::json& buckets = value["buckets"];
    contract.buckets = {buckets.at("dim"), buckets.at("sizes").get<std::vector<int64_t>>(),
                        buckets.at("outputs").get<std::vector<std::string>>()};
  }
  return contract;
}

// Checks that the name of a method is a lower-case identifier, because it is the name of a folder.
void check_name(const std::string& name, const fs::path& path) {
  const auto is_allowed = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_';
  };
  if (name.empty() || name[0] < 'a' || name[0] > 'z' || !std::all_of(name.begin(), name.end(), is_allowed)) {
    throw refused(std::string(kManifest) + " is damaged: '" + name + "' cannot be the name of a method", path);
  }
}

std::optional<std::string> optional_text(const nlohmann::json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
}

Environment environment_of(const nlohmann::json& made) {
  return {made.at("machine"), made.at("cpu"), made.at("torch"), optional_text(made.at("onnxruntime")),
          optional_text(made.at("gpu"))};
}

}  // namespace

std::vector<std::string> open_methods(const fs::path& folder) {
  require_folder(folder);
  return read_from(folder, [&] {
    const nlohmann::json value = manifest_of(folder);
    if (!value.contains("methods")) {
      throw Error(Kind::usage, "the bundle does not have several methods", folder.string(), "load it with Model::load");
    }
    const auto methods = value["methods"].get<std::vector<std::string>>();
    std::vector<fs::path> own;
    std::map<std::string, fs::path> found;
    for (const std::string& name : methods) {
      check_name(name, folder / kManifest);
      own.push_back(folder / kMethods / name);
      if (const fs::path path = own.back() / kManifest; fs::exists(path)) {
        found[path.lexically_relative(folder).generic_string()] = path;
      }
    }
    walk(folder, folder, found, own);
    compare(folder, value.at("files"), found);
    return methods;
  });
}

Manifest open_bundle(const fs::path& folder, bool shared) {
  require_folder(folder);
  return read_from(folder, [&] {
    const nlohmann::json value = manifest_of(folder);
    if (value.contains("methods")) {
      std::string names;
      for (const std::string name : value["methods"]) {
        names += (names.empty() ? "" : ", ") + name;
      }
      const std::string first = value["methods"].at(0);
      throw Error(Kind::usage, "the bundle has the methods " + names + ", and this needs one of them", folder.string(),
                  "give the folder of one of them, such as " + (folder / kMethods / first).string());
    }
    Manifest manifest;
    manifest.contract = contract_of(value.at("contract"));
    manifest.targets = value.at("targets").get<std::map<std::string, std::string>>();
    manifest.libraries = value.at("libraries").get<std::vector<std::string>>();
    manifest.environment = environment_of(value.at("environment"));
    for (const auto& package : value.value("packages", nlohmann::json::array())) {
      manifest.packages.push_back(
          {package.at("target"), package.at("path"), environment_of(package.at("environment"))});
    }
    if (value.contains("tuned")) {
      const nlohmann::json& tuned = value["tuned"];
      std::multimap<double, std::string> ordered;
      for (const auto& [target, speed] : tuned.at("speeds").items()) {
        ordered.emplace(speed.at("us").get<double>(), target);
      }
      manifest.timed_on = tuned.at("device");
      for (const auto& timed : ordered) {
        manifest.fastest.push_back(timed.second);
      }
    }
    std::map<std::string, fs::path> found;
    walk(folder, folder, found);
    compare(folder, value.at("files"), found);
    if (shared) {
      check_weights(folder);
    }
    std::vector<std::string> named = manifest.libraries;
    for (const auto& target : manifest.targets) {
      named.push_back(target.second);
    }
    for (const Package& package : manifest.packages) {
      named.push_back(package.path);
    }
    for (const std::string& name : named) {
      if (!value.at("files").contains(name)) {
        throw refused(name + " is not a file in the bundle", folder / kManifest);
      }
    }
    return manifest;
  });
}

void check_private(const fs::path& folder, const std::string& artifact, const std::vector<fs::path>& libraries) {
  std::vector<fs::path> files, folders;
  const auto add = [&](const fs::directory_entry& entry) {
    if (entry.is_directory()) {
      folders.push_back(entry.path());
    } else if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  };
  const fs::path beside = (folder / artifact).parent_path();
  if (beside == folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      add(entry);
    }
    folders.clear();  // drops the folders of other targets
    add(fs::directory_entry(folder / "onnx" / kWeights));
  } else {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(beside)) {
      add(entry);
    }
    add(fs::directory_entry(weights_folder(folder) / kWeights));
  }
  std::sort(folders.begin(), folders.end());
  std::sort(files.begin(), files.end());
  files.insert(files.end(), libraries.begin(), libraries.end());
  std::vector<fs::path> all = {folder};
  all.insert(all.end(), folders.begin(), folders.end());
  for (const fs::path& file : files) {
    if (std::find(all.begin(), all.end(), file.parent_path()) == all.end()) {
      all.push_back(file.parent_path());
    }
  }
  all.insert(all.end(), files.begin(), files.end());
  check_unshared(all);
}

}  // namespace fuseconv::runtime
