// Validation of what an op is called with. Messages name the op's argument and say both sizes.
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

// Throws std::runtime_error with the parts joined, unless the condition holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) {
    std::ostringstream message;
    (message << ... << parts);
    throw std::runtime_error(message.str());
  }
}

// A tensor argument with its name in the schema, for messages.
struct Argument {
  const char* name;
  In tensor;
};

// "[2, 3]"
std::string to_string(In tensor);

// Checks that all have one dtype, out of f64, f32, f16 and bf16, and returns it.
Dtype common_dtype(const char* op, std::initializer_list<Argument> arguments);

// Checks that `vector` is one-dimensional with as many elements as the last dim of `tensor` has.
void check_vector(const char* op, Argument vector, Argument tensor);

// Checks that both have the same sizes.
void check_same_sizes(const char* op, Argument a, Argument b);

// The place of `name` in `names`. Throws, listing them, when it is not there; `kind` is what they are names of.
size_t parse_name(const char* op, const char* kind, std::span<const std::string_view> names, std::string_view name);

// Checks that there is a last dim.
void check_has_dims(const char* op, Argument tensor);

}  // namespace fuseconv
