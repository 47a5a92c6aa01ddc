"""Changes the source of a package's C interface, `interface.cpp`, which Inductor adds to the code of each package."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

_KEPT_ERROR, _PRINTED_ERROR = "g_aoti_last_error = e.what();", """std::cerr << "Error: " << e.what() << '\\n';"""
"""The statements with which the interface keeps an error for the caller, and prints it to stderr."""

_RUNS = "AOTINoGradGuard guard;"
"""The statement with which the interface begins to run the model, in the scope of the call."""

_FIRST = 'extern "C" {'
"""The line after which the interface's functions begin."""

_WITHOUT_GIL = """
namespace {

#if defined(__linux__)
// Functions of the Python interpreter, which are null in a process without it. Before Python 3.13,
// PyThreadState_GetUnchecked is called _PyThreadState_UncheckedGet. It returns the current thread state. Before Python
// 3.12 a process has only one, that of the thread that holds the lock, so it is compared with the state of this thread.
extern "C" {
void* PyEval_SaveThread() __attribute__((weak));
void PyEval_RestoreThread(void*) __attribute__((weak));
void* PyGILState_GetThisThreadState() __attribute__((weak));
void* PyThreadState_GetUnchecked() __attribute__((weak));
void* _PyThreadState_UncheckedGet() __attribute__((weak));
}

// Releases Python's global interpreter lock for a scope, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() {
    void* (*const current)() = PyThreadState_GetUnchecked ? PyThreadState_GetUnchecked : _PyThreadState_UncheckedGet;
    if (current == nullptr || PyGILState_GetThisThreadState == nullptr) {
      return;
    }
    if (void* const state = current(); state != nullptr && state == PyGILState_GetThisThreadState()) {
      state_ = PyEval_SaveThread();
    }
  }
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};
#else
struct WithoutGil {};
#endif

}  // namespace

"""


def change_interface() -> None:
    """Changes the interface of the packages that this process compiles from now on. It then differs in two ways.

    Errors: if a call fails, the interface prints the error with a C++ backtrace to stderr, and also keeps the error for
    the caller, who raises it. The statement that prints is removed, if the error is kept.

    Threads: torch's Python binding of a package keeps the global interpreter lock during a call, so that no other
    thread of the process could run Python until the call returns. The interface releases the lock while the model runs.
    """
    from torch._inductor.codegen import cpp_wrapper_cpu

    vars(cpp_wrapper_cpu)["open"] = _open


def _open(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Opens a file like the built-in function, but changes the source of a package's interface."""
    if Path(file).name != "interface.cpp":
        return open(file, *args, **kwargs)  # noqa: PTH123 - a function that takes what `open` takes
    text = Path(file).read_text()
    if _KEPT_ERROR in text:
        text = text.replace(_PRINTED_ERROR, "")
    text = text.replace(_RUNS, f"{_RUNS}\n    [[maybe_unused]] WithoutGil without_gil;")
    return io.StringIO(text.replace(_FIRST, _WITHOUT_GIL + _FIRST, 1))
