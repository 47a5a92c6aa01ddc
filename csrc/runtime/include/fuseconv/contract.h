// The declared input signature of a model, as in fuseconv/contract. Every call is checked in the same way, with the
// same messages.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

// A static size or a symbolic dim. A symbolic dim has the same size, a multiple of `step`, wherever it occurs.
struct Size {
  int64_t value;     // the size of a static dim
  std::string name;  // the name of a symbolic dim; empty for a static dim
  int64_t min, max;
  int64_t step = 1;
};

struct TensorSpec {
  std::string name, dtype;
  std::vector<Size> shape;
};

// The sizes to which CUDA graphs round a dim up. The dim is the first axis of its inputs.
struct Buckets {
  std::string dim;
  std::vector<int64_t> sizes;        // ascending
  std::vector<std::string> outputs;  // the outputs that contain the dim

  // Returns the number of rows to which a call with `size` rows is padded. A call with 0 rows is not padded, because
  // there is no row to repeat.
  int64_t rounded(int64_t size) const;
};

// An input that is a state: its name and position, and the position of the output that is its next value.
struct StatePlace {
  std::string name;
  size_t input, output;
};

struct Contract {
  std::vector<TensorSpec> inputs;
  std::vector<std::string> outputs;
  std::string device;
  std::optional<Buckets> buckets;
  std::map<std::string, std::string> state = {};  // maps an input to the output that is its next value

  // Returns the tensors in the order of the inputs. Throws Error of kind contract if they violate the contract. `held`
  // are the inputs whose data is elsewhere: only their dtypes and shapes are given and checked.
  std::vector<const Tensor*> bind(const NamedTensors& tensors, const NamedTensors& held = {}) const;

  std::vector<StatePlace> state_places() const;

  // Returns the initial state: tensors of zeros, by input name. `sizes` gives the size of each symbolic dim in the
  // state. Throws Error of kind usage if a size is missing.
  NamedTensors zero_state(const std::map<std::string, int64_t>& sizes) const;

  // Returns the state for the next call, taken from the `outputs` of the last call. Leaves the other outputs in
  // `outputs`.
  NamedTensors next_state(NamedTensors& outputs) const;
};

}  // namespace fuseconv::runtime
