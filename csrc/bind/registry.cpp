#include "bind/registry.h"

#include <dlfcn.h>

#include <cstdio>
#include <string_view>

namespace fuseconv::torch_binding {
namespace {

// Returns the path of the library that contains a registration.
const char* file_of(const Registration& registration) {
  Dl_info info;
  return dladdr(&registration, &info) != 0 ? info.dli_fname : "an unknown file";
}

}  // namespace

const Registration* find(const Registration* head, const char* name) {
  while (head != nullptr && std::string_view(head->name) != name) {
    head = head->next;
  }
  return head;
}

std::string conflict_of(std::initializer_list<const Registration*> lists, std::span<const Registration> own) {
  for (const Registration& op : own) {
    for (const Registration* head : lists) {
      const Registration* other = find(head, op.name);
      if (other == nullptr || std::string_view(other->schema) == op.schema) {
        continue;
      }
      const std::string text = std::string("the op ") + op.name + " has two schemas: " + other->schema + " in " +
                               file_of(*other) + ", which this process loaded first, and " + op.schema + " in " +
                               file_of(op);
      // A loader that does not call fuseconv_conflict learns of the conflict from this message alone.
      std::fprintf(stderr, "fuseconv: %s. The second library registers no ops: load it in another process\n",
                   text.c_str());
      return text;
    }
  }
  return "";
}

bool claim(const Registration*& head, Registration& own) {
  if (find(head, own.name) != nullptr) {
    return false;
  }
  own.next = head;
  head = &own;
  return true;
}

}  // namespace fuseconv::torch_binding
