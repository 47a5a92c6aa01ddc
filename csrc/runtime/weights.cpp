#include "weights.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "files.h"
#include "fuseconv/error.h"

namespace fuseconv::runtime {
namespace {

constexpr uint64_t kAlignment = 64;  // ALIGNMENT of fuseconv/weights/tensor_file.py

constexpr std::pair<const char*, at::ScalarType> kStored[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U64", at::kUInt64},
    {"U32", at::kUInt32},
    {"U16", at::kUInt16},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
};

Error unfit(const std::string& what, const std::filesystem::path& path) {
  return Error(Kind::refused, what, path.string(), "convert the model again, or copy the bundle again");
}

// A memory-mapped file. It stays mapped until the last tensor that uses it is destroyed. A process that writes to a
// page gets its own copy of the page.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat found{};
    if (file < 0 || fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
      if (file >= 0) {
        close(file);
      }
      throw unfit("the file of weights cannot be read", path);
    }
    size_ = static_cast<uint64_t>(found.st_size);
    void* mapped = size_ == 0 ? nullptr : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) {
      throw unfit("the file of weights cannot be mapped", path);
    }
    data_ = static_cast<char*>(mapped);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) {
      munmap(data_, size_);
    }
  }
  char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

at::Tensor stored_tensor(const nlohmann::json& entry, const std::shared_ptr<Mapping>& file, uint64_t begin) {
  const std::string name = entry.at("dtype");
  const auto* type = std::find_if(std::begin(kStored), std::end(kStored), [&](auto& one) { return name == one.first; });
  if (type == std::end(kStored)) {
    throw std::invalid_argument("unknown dtype " + name);
  }
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto [first, last] = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  uint64_t bytes = is_empty ? 0 : c10::elementSize(type->second);
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && bytes > file->size() / static_cast<uint64_t>(size))) {
      throw std::invalid_argument("a tensor is larger than the file");
    }
    bytes *= static_cast<uint64_t>(size);
  }
  if (first > last || last > file->size() - begin || last - first != bytes ||
      (begin + first) % c10::elementSize(type->second) != 0) {
    throw std::invalid_argument("the data_offsets of a tensor do not fit its shape and dtype");
  }
  const at::Tensor tensor =
      at::from_blob(file->data() + begin + first, shape, [file](void*) {}, at::TensorOptions().dtype(type->second));
  return (begin + first) % kAlignment == 0 ? tensor : tensor.clone();
}

Weights read_stored(const std::filesystem::path& path) {
  const auto file = std::make_shared<Mapping>(path);
  uint64_t length = 0;  // little-endian, like every machine on which this runs
  if (file->size() >= 8) {
    std::memcpy(&length, file->data(), 8);
  }
  if (file->size() < 8 || length > file->size() - 8) {
    throw unfit("the file of weights is damaged: it is truncated", path);
  }
  const nlohmann::json header = nlohmann::json::parse(file->data() + 8, file->data() + 8 + length);
  Weights stored;
  for (const auto& [key, entry] : header.items()) {
    if (key != "__metadata__") {
      stored[key] = stored_tensor(entry, file, 8 + length);
    }
  }
  return stored;
}

at::Tensor weight_of(const nlohmann::json& entry, at::Tensor tensor) {
  if (entry.value("complex", false)) {
    tensor = at::view_as_complex(tensor);
  }
  return entry.contains("stride") ? tensor.as_strided(entry.at("shape").get<std::vector<int64_t>>(),
                                                      entry.at("stride").get<std::vector<int64_t>>())
                                  : tensor;
}

bool is_inside(const std::filesystem::path& name) {
  return !name.empty() && name.is_relative() && std::find(name.begin(), name.end(), "..") == name.end();
}

}  // namespace

const Weights& SharedWeights::stored(const std::filesystem::path& file) {
  const auto known = files_.find(file);
  return known != files_.end() ? known->second : files_.emplace(file, read_stored(file)).first->second;
}

at::Tensor SharedWeights::placed(const std::string& key, const at::Tensor& stored, const std::string& device) {
  auto known = placed_.find(key);
  if (known == placed_.end()) {
    known = placed_.emplace(key, stored.to(at::Device(device))).first;
  }
  return known->second.variable_data();
}

std::optional<Weights> weights_of_artifact(const std::filesystem::path& artifact, const std::string& device,
                                           SharedWeights& shared) {
  const std::filesystem::path path = artifact.parent_path() / "weights.json";
  std::ifstream text(path);
  if (!text) {
    return std::nullopt;
  }
  const std::filesystem::path bundle = weights_folder(artifact.parent_path().parent_path());
  try {
    const nlohmann::json table = nlohmann::json::parse(text);
    Weights stored, weights;
    for (const std::string name : table.at("files")) {
      if (!is_inside(name)) {
        throw unfit("weights.json names a file outside of the bundle: " + name, path);
      }
      const Weights& found = shared.stored(bundle / name);
      stored.insert(found.begin(), found.end());
    }
    for (const auto& [name, entry] : table.at("tensors").items()) {
      const std::string key = entry.at("key");
      weights[name] = weight_of(entry, shared.placed(key, stored.at(key), device));
    }
    return weights;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw unfit(std::string("weights.json does not fit the weights: ") + error.what(), path);
  }
}

}  // namespace fuseconv::runtime
