// Checks the arguments of an op. The error messages name the argument and show the expected and the actual sizes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/tensor_view.h"

namespace fuseconv {

// A tensor argument and its name in the schema. The name appears in error messages.
struct Argument {
  const char* name;
  In tensor;
};

// The sizes of a tensor in a message, such as "[2, 3]". A check that succeeds does not convert them to text.
struct SizesText {
  In tensor;
};

// Each adds one part to a message. A stream would do the same, but its header takes nvcc a second per file.
inline void add_part(std::string& message, std::string_view part) { message += part; }
void add_part(std::string& message, SizesText sizes);
void add_number(std::string& message, int64_t number);
void add_number(std::string& message, double number);

template <class Number>
  requires std::is_arithmetic_v<Number>
void add_part(std::string& message, Number number) {
  add_number(message, static_cast<std::conditional_t<std::is_integral_v<Number>, int64_t, double>>(number));
}

// Throws std::runtime_error if the condition is false. The message is the concatenation of the parts.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) {
    std::string message;
    (add_part(message, parts), ...);
    throw std::runtime_error(message);
  }
}

// Returns the dtype of the arguments. Throws std::runtime_error unless all arguments have the same dtype and it is f64,
// f32, f16 or bf16.
Dtype common_dtype(const char* op, std::initializer_list<Argument> arguments);

// Checks that `vector` is one-dimensional and as long as the last dim of `tensor`.
void check_vector(const char* op, Argument vector, Argument tensor);

// Checks that both arguments have the same sizes.
void check_same_sizes(const char* op, Argument a, Argument b);

// Returns the index of `name` in `names`. Throws std::runtime_error if `name` is not in `names`; the message lists the
// names. `kind` is the word in the message for what is named, such as "activation".
size_t parse_name(const char* op, const char* kind, std::span<const std::string_view> names, std::string_view name);

// Checks that the tensor has at least one dim.
void check_has_dims(const char* op, Argument tensor);

}  // namespace fuseconv
