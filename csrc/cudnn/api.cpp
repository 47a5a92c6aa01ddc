#include "cudnn/api.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <optional>

namespace fuseconv::cudnn {
namespace {

std::optional<Functions> load() {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return std::nullopt;
  }
  Functions found{};
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = dlsym(library, name);
    complete = complete && symbol != nullptr;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(found.create, "cudnnCreate");
  find(found.set_stream, "cudnnSetStream");
  find(found.create_descriptor, "cudnnBackendCreateDescriptor");
  find(found.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(found.set_attribute, "cudnnBackendSetAttribute");
  find(found.get_attribute, "cudnnBackendGetAttribute");
  find(found.finalize, "cudnnBackendFinalize");
  find(found.execute, "cudnnBackendExecute");
  find(found.error_string, "cudnnGetErrorString");
  return complete ? std::optional(found) : std::nullopt;
}

}  // namespace

const Functions* functions() {
  static const std::optional<Functions> found = load();
  return found ? &*found : nullptr;
}

Handle handle_of_thread() {
  // Not destroyed: CUDA may be gone before a thread's destructors run.
  thread_local std::map<int, Handle>* const handles = new std::map<int, Handle>;
  if (functions() == nullptr) {
    return nullptr;
  }
  int device;
  if (cudaGetDevice(&device) != cudaSuccess) {
    throw std::runtime_error("fuseconv: cudaGetDevice failed");
  }
  Handle& handle = (*handles)[device];
  if (handle == nullptr) {
    check(functions()->create(&handle), "cudnnCreate");
  }
  return handle;
}

}  // namespace fuseconv::cudnn
