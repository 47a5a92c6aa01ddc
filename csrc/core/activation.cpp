#include "core/activation.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "core/check.h"

namespace fuseconv {

Activation parse_activation(const char* op, std::string_view text) {
  const size_t open = text.find('(');
  const size_t index = parse_name(op, "activation", kActivationNames, text.substr(0, open));
  return dispatch(static_cast<Activation::Name>(index), [&]<class Functor>(Functor) -> Activation {
    const auto name = static_cast<Activation::Name>(index);
    if constexpr (kHasParameter<Functor>) {
      double parameter = std::bit_cast<double>(Functor{});
      if (open == text.npos) {
        return {name, parameter};
      }
      const char *const first = text.data() + open + 1, *const last = text.data() + text.size();
      const auto [end, error] = std::from_chars(first, last, parameter);
      check(error == std::errc() && end + 1 == last && *end == ')' && std::isfinite(parameter), "fuseconv::", op,
            ": the activation '", text, "' must be ", kActivationNames[index], " or, with a finite number, as in ",
            kActivationNames[index], "(0.5)");
      return {name, parameter};
    } else {
      check(open == text.npos, "fuseconv::", op, ": the activation '", text, "' must be ", kActivationNames[index],
            ", which has no parameter");
      return name;
    }
  });
}

}  // namespace fuseconv
