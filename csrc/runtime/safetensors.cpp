#include "fuseconv/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "files.h"
#include "fuseconv/error.h"

namespace fuseconv::runtime {
namespace {

constexpr std::pair<const char*, const char*> kNames[] = {
    {"f64", "F64"}, {"f32", "F32"}, {"f16", "F16"}, {"bf16", "BF16"}, {"i64", "I64"},
    {"i32", "I32"}, {"i16", "I16"}, {"i8", "I8"},   {"u8", "U8"},     {"bool", "BOOL"},
};

Error damaged(const std::string& what, const std::filesystem::path& path) {
  return Error(Kind::refused, "the file is not a valid safetensors file: " + what, path.string(), "write it again");
}

Tensor tensor_of(const nlohmann::json& entry, const std::vector<char>& data, const std::filesystem::path& path) {
  Tensor tensor;
  for (const auto& [own, theirs] : kNames) {
    if (entry.at("dtype") == theirs) {
      tensor.dtype = own;
    }
  }
  if (tensor.dtype.empty()) {
    throw damaged("unknown dtype " + entry.at("dtype").dump(), path);
  }
  tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto [begin, end] = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
  const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  uint64_t bytes = is_empty ? 0 : static_cast<uint64_t>(element_size(tensor.dtype));
  for (const int64_t size : tensor.shape) {
    if (size < 0 || (size > 0 && bytes > data.size() / static_cast<uint64_t>(size))) {
      throw damaged("a tensor is larger than the file", path);
    }
    bytes *= static_cast<uint64_t>(size);
  }
  if (begin > end || end > data.size() || end - begin != bytes) {
    throw damaged("the data_offsets of a tensor do not fit its shape and dtype", path);
  }
  tensor.data.assign(data.begin() + static_cast<std::ptrdiff_t>(begin),
                     data.begin() + static_cast<std::ptrdiff_t>(end));
  return tensor;
}

}  // namespace

NamedTensors load_tensors(const std::filesystem::path& path) {
  const std::filesystem::file_status status = std::filesystem::status(path);
  if (const std::string odd = oddity(status); std::filesystem::exists(status) && !odd.empty()) {
    throw Error(Kind::file, "the file cannot be read: " + odd, path.string(), "check the path and its permissions");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    throw Error(Kind::file, "the file cannot be read", path.string(), "check the path and its permissions");
  }
  const uint64_t size = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  uint64_t length = 0;  // little-endian, like every machine on which this runs
  if (size < 8 || !file.read(reinterpret_cast<char*>(&length), 8) || length > size - 8) {
    throw damaged("it is truncated", path);
  }
  std::string header(length, '\0');
  std::vector<char> data(size - 8 - length);
  file.read(header.data(), static_cast<std::streamsize>(length));
  file.read(data.data(), static_cast<std::streamsize>(data.size()));
  if (!file) {
    throw damaged("it is truncated", path);
  }
  NamedTensors tensors;
  try {
    const nlohmann::json entries = nlohmann::json::parse(header);
    for (const auto& [name, entry] : entries.items()) {
      if (name != "__metadata__") {
        tensors[name] = tensor_of(entry, data, path);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw damaged(error.what(), path);
  }
  return tensors;
}

void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  nlohmann::json entries = nlohmann::json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    std::string dtype;
    for (const auto& [own, theirs] : kNames) {
      dtype = tensor.dtype == own ? theirs : dtype;
    }
    entries[name] = {
        {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string header = entries.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.write(header.data(), static_cast<std::streamsize>(length));
  for (const auto& named : tensors) {
    file.write(named.second.data.data(), static_cast<std::streamsize>(named.second.data.size()));
  }
  file.close();
  if (!file) {
    throw Error(Kind::file, "the file cannot be written: " + std::string(std::strerror(errno)), path.string(),
                "check the path, its permissions and the free disk space");
  }
}

}  // namespace fuseconv::runtime
