#include "tuning/tactics.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace fuseconv::tuning {
namespace {

constexpr const char* kFormat = "fuseconv tuning 1";
constexpr size_t kKept = 8;        // the maximum number of tactics per size
constexpr double kSlow = 1.5;      // a tactic is slow if it takes this many times as long as the fastest
constexpr double kLongest = 1e12;  // the maximum time of a tactic in microseconds

void sort(std::vector<Tactic>& tactics) {
  std::stable_sort(tactics.begin(), tactics.end(),
                   [](const Tactic& a, const Tactic& b) { return a.microseconds < b.microseconds; });
}

const Tactic* find(const std::vector<Tactic>& tactics, const std::string& name) {
  const auto found = std::find_if(tactics.begin(), tactics.end(), [&](const Tactic& t) { return t.name == name; });
  return found == tactics.end() ? nullptr : &*found;
}

Tactic tactic_of(const std::string& name, const nlohmann::json& value) {
  Tactic tactic{name, value.at("us").get<double>(), value.at("noise").get<double>()};
  if (!(tactic.microseconds > 0 && tactic.microseconds < kLongest)) {
    throw std::runtime_error("the time of " + name + " is not a positive number of microseconds");
  }
  return tactic;
}

// Returns the value, rounded to a multiple of 1 / scale, as decimal text that does not depend on the process's locale.
std::string rounded(double value, double scale) {
  const double scaled = std::round(value * scale);
  return nlohmann::json(std::isfinite(scaled) ? scaled / scale : 0.0).dump();
}

int64_t size_of(const std::string& text) {
  const bool is_size = !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string::npos;
  const int64_t size = is_size ? std::stoll(text) : 0;
  if (size < 1) {
    throw std::runtime_error("a size is a positive whole number, not " + text);
  }
  return size;
}

}  // namespace

std::vector<Tactic> Tactics::measured(const std::string& family, int64_t size) const {
  const auto sizes = families_.find(family);
  if (sizes == families_.end()) {
    return {};
  }
  const auto found = sizes->second.find(size);
  return found == sizes->second.end() ? std::vector<Tactic>() : found->second;
}

std::vector<Tactic> Tactics::expected(const std::string& family, int64_t size) const {
  const auto sizes = families_.find(family);
  if (sizes == families_.end() || size < 1) {
    return {};
  }
  const auto above = sizes->second.lower_bound(size);
  if (above == sizes->second.begin() || (above != sizes->second.end() && above->first == size)) {
    return above->second;
  }
  const auto below = std::prev(above);
  if (above == sizes->second.end()) {
    return below->second;
  }
  const double low = std::log(static_cast<double>(below->first)), high = std::log(static_cast<double>(above->first));
  const double weight = (std::log(static_cast<double>(size)) - low) / (high - low);
  std::vector<Tactic> found;
  for (const Tactic& tactic : below->second) {
    if (const Tactic* other = find(above->second, tactic.name)) {
      const double microseconds =
          std::exp((1 - weight) * std::log(tactic.microseconds) + weight * std::log(other->microseconds));
      found.push_back({tactic.name, microseconds, std::max(tactic.noise, other->noise)});
    }
  }
  sort(found);
  const auto& nearest = weight < 0.5 ? below->second : above->second;
  const auto& farther = weight < 0.5 ? above->second : below->second;
  for (const auto* tactics : {&nearest, &farther}) {
    for (const Tactic& tactic : *tactics) {
      if (find(found, tactic.name) == nullptr) {
        found.push_back(tactic);
      }
    }
  }
  return found;
}

void Tactics::put(const std::string& family, int64_t size, std::vector<Tactic> tactics) {
  sort(tactics);
  while (!tactics.empty() &&
         (tactics.size() > kKept || tactics.back().microseconds > kSlow * tactics.front().microseconds)) {
    tactics.pop_back();
  }
  if (!tactics.empty()) {
    families_[family][size] = std::move(tactics);
  }
}

std::string Tactics::to_json() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  const auto quoted = [](const std::string& name) { return nlohmann::json(name).dump(); };
  text << "{\n \"format\": \"" << kFormat << "\",\n \"problems\": {";
  const char* next_family = "\n  ";
  for (const auto& [family, sizes] : families_) {
    text << next_family << quoted(family) << ": {";
    next_family = ",\n  ";
    const char* next_size = "\n   ";
    for (const auto& [size, tactics] : sizes) {
      text << next_size << '"' << size << "\": {";
      next_size = ",\n   ";
      const char* next = "\n    ";
      for (const Tactic& tactic : tactics) {
        text << next << quoted(tactic.name) << ": {\"us\": " << rounded(std::max(tactic.microseconds, 0.001), 1e3)
             << ", \"noise\": " << rounded(tactic.noise, 1e4) << '}';
        next = ",\n    ";
      }
      text << "\n   }";
    }
    text << "\n  }";
  }
  text << (families_.empty() ? "}" : "\n }") << "\n}\n";
  return text.str();
}

void Tactics::add(std::string_view json) {
  std::map<std::string, std::map<int64_t, std::vector<Tactic>>> read;
  try {
    const nlohmann::json file = nlohmann::json::parse(json);
    if (file.at("format") != kFormat) {
      throw std::runtime_error(std::string("its format is not \"") + kFormat + "\"");
    }
    for (const auto& [family, sizes] : file.at("problems").items()) {
      for (const auto& [size, tactics] : sizes.items()) {
        std::vector<Tactic>& list = read[family][size_of(size)];
        for (const auto& [name, value] : tactics.items()) {
          list.push_back(tactic_of(name, value));
        }
        sort(list);
        list.resize(std::min(list.size(), kKept));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(error.what());
  }
  for (auto& [family, sizes] : read) {
    for (auto& [size, tactics] : sizes) {
      if (!tactics.empty()) {
        families_[family].insert_or_assign(size, std::move(tactics));
      }
    }
  }
}

}  // namespace fuseconv::tuning
