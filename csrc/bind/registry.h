// Keeps the list of ops that are registered in this process. Each bundle contains a copy of the library, and a process
// may load several copies, even of different versions. The first copy that contains an op registers the op and serves
// all callers. Therefore an op whose meaning changes needs a new name.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fuseconv::torch_binding {

// The C function that runs an op. arguments[i] points to argument i of the schema in its C representation (see
// CArgument) and is borrowed for the call. The function stores result i in *results[i], and the caller owns it.
using CShim = AOTITorchError (*)(const void* const* arguments, AtenTensorHandle* const* results);

struct Registration {
  const char* name;
  const char* schema;
  CShim c_shim;
  const Registration* next;
};

// Returns the op of that name, or null if the list does not contain one.
const Registration* find(const Registration* head, const char* name);

// Adds `own` to the list that all copies of the library share and returns true. Returns false if another copy has
// already added the op. Throws if the list contains an op of that name with another schema; this ends the process,
// because no loader can catch the exception. Needs no lock, because libraries are loaded one at a time.
bool claim(const Registration*& head, Registration& own);

}  // namespace fuseconv::torch_binding
