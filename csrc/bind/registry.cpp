#include "bind/registry.h"

#include <string_view>

#include "core/check.h"

namespace fuseconv::torch_binding {

bool claim(const Registration*& head, Registration& own) {
  for (const Registration* other = head; other != nullptr; other = other->next) {
    if (std::string_view(other->name) == own.name) {
      check(std::string_view(other->schema) == own.schema, "fuseconv: this process has the op ", other->schema,
            " and loads a library whose op is ", own.schema);
      return false;
    }
  }
  own.next = head;
  head = &own;
  return true;
}

}  // namespace fuseconv::torch_binding
