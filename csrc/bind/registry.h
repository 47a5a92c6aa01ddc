// Which ops this process has. Each bundle carries a copy of the library and one process may load several, also of
// several versions: the first copy that has an op registers it, and serves all. So an op whose meaning changes takes a
// new name.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fuseconv::torch_binding {

// Runs an op: arguments[i] points at argument i of the schema as it is in C, borrowed for the call; *results[i] becomes
// result i, which is then the caller's.
using CShim = AOTITorchError (*)(const void* const* arguments, AtenTensorHandle* const* results);

struct Registration {
  const char* name;
  const char* schema;
  CShim c_shim;
  const Registration* next;
};

// The op of that name in the list, or null.
const Registration* find(const Registration* head, const char* name);

// Puts `own` at the head of the list that all copies share and returns true, or returns false if the list has the op.
// Throws, which ends the process since no loader can catch it, if the list has another op of that name. Libraries are
// loaded one at a time.
bool claim(const Registration*& head, Registration& own);

}  // namespace fuseconv::torch_binding
