#include "fuseconv/contract.h"

#include <algorithm>

#include "fuseconv/error.h"

namespace fuseconv::runtime {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

namespace {

std::string to_string(const Size& size) {
  if (size.name.empty()) {
    return std::to_string(size.value);
  }
  return size.name + ":" + std::to_string(size.min) + ".." + std::to_string(size.max) +
         (size.step > 1 ? ":" + std::to_string(size.step) : "");
}

// Returns an input as text, such as "x=f32[batch:1..16,8]".
std::string to_string(const TensorSpec& spec) {
  std::string text = spec.name + "=" + spec.dtype + "[";
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + to_string(spec.shape[i]);
  }
  return text + "]";
}

template <class Items, class Text>
std::string joined(const Items& items, Text text) {
  std::string all;
  for (const auto& item : items) {
    all += (all.empty() ? "" : ", ") + text(item);
  }
  return all;
}

Error violation(const TensorSpec& spec, const std::string& what) {
  return Error(Kind::contract, "input " + spec.name + " " + what, "input " + spec.name, "pass " + to_string(spec));
}

// Maps the name of a symbolic dim to its size and to the input that determined the size.
using Sizes = std::map<std::string, std::pair<int64_t, std::string>>;

// Returns whether the data of a tensor has as many bytes as its shape and dtype require. Divides by the sizes, because
// their product may overflow.
bool is_filled(const Tensor& tensor) {
  uint64_t left = tensor.data.size();
  const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  if (is_empty || left == 0) {
    return is_empty && left == 0;
  }
  for (const int64_t size : tensor.shape) {
    if (left % static_cast<uint64_t>(size) != 0) {
      return false;
    }
    left /= static_cast<uint64_t>(size);
  }
  return left == static_cast<uint64_t>(element_size(tensor.dtype));
}

void check(const TensorSpec& spec, const Tensor& tensor, Sizes& sizes) {
  if (tensor.dtype != spec.dtype) {
    throw violation(spec, "has dtype " + tensor.dtype + ", but the contract says " + spec.dtype);
  }
  const size_t rank = tensor.shape.size();
  if (rank != spec.shape.size()) {
    throw violation(spec, "has " + std::to_string(rank) + " dims " + shape_text(tensor.shape) +
                              ", but the contract says " + std::to_string(spec.shape.size()));
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    const Size& expected = spec.shape[axis];
    const int64_t size = tensor.shape[axis];
    const std::string at = " at axis " + std::to_string(axis);
    if (expected.name.empty()) {
      if (size != expected.value) {
        throw violation(spec,
                        "has size " + std::to_string(size) + at + ", but the contract says " + to_string(expected));
      }
      continue;
    }
    const auto [first, is_new] = sizes.try_emplace(expected.name, size, spec.name);
    if (is_new && (size < expected.min || size > expected.max)) {
      throw violation(spec, "has size " + std::to_string(size) + at + ", outside " + to_string(expected));
    }
    if (is_new && size % expected.step != 0) {
      throw violation(spec,
                      "has size " + std::to_string(size) + at + ", not a multiple of " + std::to_string(expected.step));
    }
    if (first->second.first != size) {
      throw violation(spec, "has " + expected.name + "=" + std::to_string(size) + at + ", but " + first->second.second +
                                " has " + std::to_string(first->second.first));
    }
  }
}

void check_data(const TensorSpec& spec, const Tensor& tensor) {
  if (!is_filled(tensor)) {
    throw violation(spec, "has " + std::to_string(tensor.data.size()) + " bytes, which does not match " +
                              shape_text(tensor.shape) + " of " + tensor.dtype);
  }
}

}  // namespace

int64_t Buckets::rounded(int64_t size) const {
  const auto bucket = std::lower_bound(sizes.begin(), sizes.end(), size);
  return size == 0 || bucket == sizes.end() ? size : *bucket;
}

std::vector<const Tensor*> Contract::bind(const NamedTensors& tensors, const NamedTensors& held) const {
  std::vector<const Tensor*> ordered;
  for (const TensorSpec& spec : inputs) {
    const NamedTensors& from = held.contains(spec.name) ? held : tensors;
    const auto found = from.find(spec.name);
    ordered.push_back(found == from.end() ? nullptr : &found->second);
  }
  if (tensors.size() + held.size() != inputs.size() ||
      std::find(ordered.begin(), ordered.end(), nullptr) != ordered.end()) {
    const std::string given = joined(tensors, [](const auto& item) { return item.first; });
    throw Error(Kind::contract,
                "the model takes " + std::to_string(inputs.size()) + " inputs (" +
                    joined(inputs, [](const TensorSpec& spec) { return spec.name; }) + "), but the call passes " +
                    (given.empty() ? "none" : given),
                "the call's arguments",
                "pass " + joined(inputs, [](const TensorSpec& spec) { return to_string(spec); }));
  }
  Sizes sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i], *ordered[i], sizes);
    if (!held.contains(inputs[i].name)) {
      check_data(inputs[i], *ordered[i]);
    }
  }
  return ordered;
}

NamedTensors Contract::zero_state(const std::map<std::string, int64_t>& sizes) const {
  NamedTensors zeros;
  for (const TensorSpec& spec : inputs) {
    if (!state.contains(spec.name)) {
      continue;
    }
    Tensor tensor{spec.dtype, {}, {}};
    int64_t bytes = element_size(spec.dtype);
    for (const Size& size : spec.shape) {
      const auto given = sizes.find(size.name);
      if (!size.name.empty() && given == sizes.end()) {
        throw Error(Kind::usage, "the size of " + size.name + " is missing", "the sizes of the state",
                    "give " + to_string(size) + " a size");
      }
      tensor.shape.push_back(size.name.empty() ? size.value : given->second);
      bytes *= tensor.shape.back();
    }
    tensor.data.resize(static_cast<size_t>(bytes));
    zeros[spec.name] = std::move(tensor);
  }
  return zeros;
}

std::vector<StatePlace> Contract::state_places() const {
  std::vector<StatePlace> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto found = state.find(inputs[i].name); found != state.end()) {
      const auto output = std::find(outputs.begin(), outputs.end(), found->second);
      places.push_back({inputs[i].name, i, static_cast<size_t>(output - outputs.begin())});
    }
  }
  return places;
}

NamedTensors Contract::next_state(NamedTensors& outputs) const {
  NamedTensors next;
  for (const auto& [input, output] : state) {
    next[input] = std::move(outputs.at(output));
    outputs.erase(output);
  }
  return next;
}

}  // namespace fuseconv::runtime
