// The ops that are registered in this process. Each bundle contains a copy of the library, and a process may load
// several copies, even of different versions. The first copy that contains an op registers the op and serves all
// callers. Therefore an op whose meaning changes needs a new name.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fuseconv::torch_binding {

// Runs an op. arguments[i] points to argument i of the schema in its C form, borrowed for the call. *results[i] becomes
// result i, which the caller owns.
using CShim = AOTITorchError (*)(const void* const* arguments, AtenTensorHandle* const* results);

struct Registration {
  const char* name;
  const char* schema;
  CShim c_shim;
  const Registration* next;
};

// Returns the op of that name in the list, or null.
const Registration* find(const Registration* head, const char* name);

// Adds `own` to the list that all copies share and returns true, or returns false if the list already contains the op.
// Throws if the list contains a different op of that name; this ends the process, because no loader can catch the
// exception. Libraries are loaded one at a time.
bool claim(const Registration*& head, Registration& own);

}  // namespace fuseconv::torch_binding
