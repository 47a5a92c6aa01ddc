// Keeps the list of ops that are registered in this process. Each bundle contains a copy of the library, and a process
// may load several copies, even of different versions. The first copy that contains an op registers the op and serves
// all callers. Therefore an op whose meaning changes needs a new name. A copy that has another schema of an op than an
// earlier copy registers nothing.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <initializer_list>
#include <span>
#include <string>

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

// Returns an empty string if no op of `own` is in one of the lists with another schema. Otherwise returns a text that
// names the op, both schemas and both libraries, and also prints it to stderr. It does not throw, because an exception
// in a static initializer would end the process.
std::string conflict_of(std::initializer_list<const Registration*> lists, std::span<const Registration> own);

// Adds `own` to the list that all copies of the library share and returns true. Returns false if another copy has
// already added the op. Needs no lock, because libraries are loaded one at a time.
bool claim(const Registration*& head, Registration& own);

// The ops that are registered for the CPU. The variable is inline and has default visibility, so that all copies of the
// libraries in a process share one object (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline const Registration* cpu_registrations = nullptr;

}  // namespace fuseconv::torch_binding
