#include "core/check.h"

#include <algorithm>
#include <sstream>

namespace fuseconv {

void add_part(std::string& message, SizesText sizes) {
  message += '[';
  for (int axis = 0; axis < sizes.tensor.rank; ++axis) {
    message += axis ? ", " : "";
    add_number(message, sizes.tensor.sizes[axis]);
  }
  message += ']';
}

void add_number(std::string& message, int64_t number) { message += std::to_string(number); }

void add_number(std::string& message, double number) {
  std::ostringstream text;
  text << number;
  message += text.str();
}

Dtype common_dtype(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  for (const Argument& argument : arguments) {
    const Dtype dtype = argument.tensor.dtype;
    check(dtype != Dtype::i64 && dtype != Dtype::other, "fuseconv::", op, ": ", argument.name,
          " must be float64, float32, float16 or bfloat16");
    check(dtype == first.tensor.dtype, "fuseconv::", op, ": ", argument.name, " and ", first.name,
          " must have the same dtype");
  }
  return first.tensor.dtype;
}

void check_vector(const char* op, Argument vector, Argument tensor) {
  check_has_dims(op, tensor);
  const int64_t last = tensor.tensor.sizes[tensor.tensor.rank - 1];
  check(vector.tensor.rank == 1 && vector.tensor.sizes[0] == last, "fuseconv::", op, ": ", vector.name,
        " must have the shape [", last, "], the last dim of ", tensor.name, ", but has ", SizesText{vector.tensor});
}

void check_same_sizes(const char* op, Argument a, Argument b) {
  check(a.tensor.rank == b.tensor.rank && std::equal(a.tensor.sizes, a.tensor.sizes + a.tensor.rank, b.tensor.sizes),
        "fuseconv::", op, ": ", b.name, " must have the shape of ", a.name, ", ", SizesText{a.tensor}, ", but has ",
        SizesText{b.tensor});
}

void check_has_dims(const char* op, Argument tensor) {
  check(tensor.tensor.rank > 0, "fuseconv::", op, ": ", tensor.name, " must have at least one dim");
}

size_t parse_name(const char* op, const char* kind, std::span<const std::string_view> names, std::string_view name) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) {
      return i;
    }
    all.append(i == 0 ? "" : ", ").append(names[i]);
  }
  throw std::runtime_error("fuseconv::" + std::string(op) + ": unknown " + kind + " '" + std::string(name) +
                           "'; use one of " + all);
}

}  // namespace fuseconv
