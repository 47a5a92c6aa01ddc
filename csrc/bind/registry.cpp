#include "bind/registry.h"

#include <string_view>

#include "core/check.h"

namespace fuseconv::torch_binding {

const Registration* find(const Registration* head, const char* name) {
  while (head != nullptr && std::string_view(head->name) != name) {
    head = head->next;
  }
  return head;
}

bool claim(const Registration*& head, Registration& own) {
  if (const Registration* other = find(head, own.name)) {
    check(std::string_view(other->schema) == own.schema, "fuseconv: this process has the op ", other->schema,
          " and loads a library whose op is ", own.schema);
    return false;
  }
  own.next = head;
  head = &own;
  return true;
}

}  // namespace fuseconv::torch_binding
