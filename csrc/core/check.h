// Checks the arguments of an op. Messages name the argument and show both sizes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/tensor_view.h"

namespace fuseconv {

// Throws std::runtime_error with the concatenated parts unless the condition holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) {
    std::ostringstream message;
    (message << ... << parts);
    throw std::runtime_error(message.str());
  }
}

// A tensor argument and its name in the schema, for messages.
struct Argument {
  const char* name;
  In tensor;
};

// Returns the sizes as text, such as "[2, 3]".
std::string to_string(In tensor);

// Checks that all arguments have the same dtype, one of f64, f32, f16 and bf16, and returns the dtype.
Dtype common_dtype(const char* op, std::initializer_list<Argument> arguments);

// Checks that `vector` is one-dimensional and as long as the last dim of `tensor`.
void check_vector(const char* op, Argument vector, Argument tensor);

// Checks that both arguments have the same sizes.
void check_same_sizes(const char* op, Argument a, Argument b);

// Returns the position of `name` in `names`. Throws if it is missing, and then lists the names; `kind` says what the
// names denote.
size_t parse_name(const char* op, const char* kind, std::span<const std::string_view> names, std::string_view name);

// Checks that the tensor has at least one dim.
void check_has_dims(const char* op, Argument tensor);

}  // namespace fuseconv
