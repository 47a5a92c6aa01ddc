#include "cudnn/api.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
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
  find(found.version, "cudnnGetVersion");
  return complete ? std::optional(found) : std::nullopt;
}

}  // namespace

const Functions* functions() {
  static const std::optional<Functions> found = load();
  return found ? &*found : nullptr;
}

namespace {

// The free handles of each device, which no thread holds. They are never destroyed, because CUDA may have shut down
// before a static destructor runs.
struct Pool {
  std::mutex mutex;
  std::multimap<int, Handle> handles;
};
Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

// The handles that one thread holds. When the thread ends, they return to the pool, and other threads can take them.
struct Held {
  std::map<int, Handle> handles;

  ~Held() {
    const std::lock_guard lock(pool().mutex);
    pool().handles.insert(handles.begin(), handles.end());
  }
};

Handle taken(int device) {
  {
    const std::lock_guard lock(pool().mutex);
    if (const auto found = pool().handles.find(device); found != pool().handles.end()) {
      const Handle handle = found->second;
      pool().handles.erase(found);
      return handle;
    }
  }
  Handle handle;
  check(functions()->create(&handle), "cudnnCreate");
  return handle;
}

}  // namespace

Handle handle_of_thread() {
  thread_local Held held;
  int device;
  if (cudaGetDevice(&device) != cudaSuccess) {
    throw std::runtime_error("fuseconv: cudaGetDevice failed");
  }
  const auto found = held.handles.find(device);
  return found != held.handles.end() ? found->second : held.handles.emplace(device, taken(device)).first->second;
}

}  // namespace fuseconv::cudnn
