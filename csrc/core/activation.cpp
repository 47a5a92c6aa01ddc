#include "core/activation.h"

#include "core/check.h"

namespace fuseconv {

Activation parse_activation(const char* op, std::string_view name) {
  return static_cast<Activation>(parse_name(op, "activation", kActivationNames, name));
}

}  // namespace fuseconv
