// The input contract of fuseconv/contract: the same check on every call, with the same messages.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseconv/tensor.h"

namespace fuseconv::runtime {

// A size: static, or a symbolic dim, which has the same size wherever it occurs, a multiple of `step`.
struct Size {
  int64_t value;     // of a static one
  std::string name;  // empty for a static one
  int64_t min, max;
  int64_t step = 1;
};

struct TensorSpec {
  std::string name, dtype;
  std::vector<Size> shape;
};

// The sizes to which a dim, the first axis of its inputs, is rounded up for CUDA graphs.
struct Buckets {
  std::string dim;
  std::vector<int64_t> sizes;        // ascending
  std::vector<std::string> outputs;  // those that have the dim

  // The number of rows that a call of `size` rows is run with. 0 rows are not padded, because there is no row to
  // repeat.
  int64_t rounded(int64_t size) const;
};

struct Contract {
  std::vector<TensorSpec> inputs;
  std::vector<std::string> outputs;
  std::string device;
  std::optional<Buckets> buckets;
  std::map<std::string, std::string> state = {};  // inputs, and the outputs that are their next values

  // The tensors in the order of the inputs. Throws Error of kind contract.
  std::vector<const Tensor*> bind(const NamedTensors& tensors) const;

  // The state at the start: zeros, by the names of inputs. `sizes` has the size of each dim of it. Throws Error of kind
  // usage if one is missing.
  NamedTensors zero_state(const std::map<std::string, int64_t>& sizes) const;

  // The state after a call that returned `outputs`, for the next call. The other outputs are left.
  NamedTensors next_state(NamedTensors& outputs) const;
};

}  // namespace fuseconv::runtime
