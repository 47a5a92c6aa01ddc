// The ops that are registered in this process. Each bundle contains a copy of the library, and a process may load
// several copies, also of different versions. The first copy with an op registers it and serves all callers. Therefore
// an op whose meaning changes needs a new name.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fuseconv::torch_binding {

// Runs an op. arguments[i] points at argument i of the schema in its C form, borrowed for the call. *results[i] becomes
// result i, owned by the caller.
using CShim = AOTITorchError (*)(const void* const* arguments, AtenTensorHandle* const* results);

struct Registration {
  const char* name;
  const char* schema;
  CShim c_shim;
  const Registration* next;
};

// The op with that name in the list, or null.
const Registration* find(const Registration* head, const char* name);

// Adds `own` to the list that all copies share and returns true. Returns false if the list already has the op. If the
// list has a different op of that name it throws, which ends the process, because no loader can catch it. Libraries are
// loaded one at a time.
bool claim(const Registration*& head, Registration& own);

}  // namespace fuseconv::torch_binding
