#include "core/activation.h"

#include "core/check.h"

namespace fuseconv {

Activation parse_activation(const char* op, std::string_view name) {
  struct Entry {
    std::string_view name;
    Activation activation;
  };
  static constexpr Entry entries[] = {
      {"none", Activation::none},           {"relu", Activation::relu}, {"gelu", Activation::gelu},
      {"gelu_tanh", Activation::gelu_tanh}, {"silu", Activation::silu}, {"sigmoid", Activation::sigmoid},
      {"tanh", Activation::tanh},
  };
  for (const Entry& entry : entries) {
    if (entry.name == name) {
      return entry.activation;
    }
  }
  check(false, "fuseconv::", op, ": unknown activation '", name,
        "'; use one of none, relu, gelu, gelu_tanh, silu, sigmoid, tanh");
  return Activation::none;
}

}  // namespace fuseconv
