// Which ops this process has. Each bundle carries a copy of the library and one process may load several, also of
// several versions: the first copy that has an op registers it, and serves all. So an op whose meaning changes takes a
// new name.
#pragma once

namespace fuseconv::torch_binding {

struct Registration {
  const char* name;
  const char* schema;
  const Registration* next;
};

// Puts `own` at the head of the list that all copies share and returns true, or returns false if the list has the op.
// Throws, which ends the process since no loader can catch it, if the list has another op of that name. Libraries are
// loaded one at a time.
bool claim(const Registration*& head, Registration& own);

}  // namespace fuseconv::torch_binding
