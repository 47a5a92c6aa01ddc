#include "core/linear_backend.h"

#include "core/check.h"

namespace fuseconv::linear {

std::optional<Backend> parse_backend(const char* op, std::string_view name) {
  static constexpr auto names = [] {
    constexpr auto kCount = static_cast<size_t>(Backend::cudnn);  // of the backends before it
    std::array<std::string_view, kCount + 1> all{"auto"};
    for (size_t i = 0; i < kCount; ++i) {
      all[i + 1] = kBackends[i];
    }
    return all;
  }();
  const size_t place = parse_name(op, "backend", names, name);
  return place == 0 ? std::nullopt : std::optional(static_cast<Backend>(place - 1));
}

}  // namespace fuseconv::linear
