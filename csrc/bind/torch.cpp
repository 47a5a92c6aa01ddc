// libfuseconv_cpu: schemas of all ops, and their CPU kernels, for torch.
#include "bind/torch.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include "core/isa.h"
#include "ops/all.h"

namespace fuseconv::torch_binding {

// Inline and visible, hence one object in a process however many copies of the library it loads (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline const char* cpu_version = nullptr;

namespace {

constexpr GemmShims kGemm{aoti_torch_cpu_addmm_out, aoti_torch_cpu_mm_out};

class TorchCpuHost final : public CpuHost {
 public:
  explicit TorchCpuHost(Device device) : device_(device) {}

  void parallel_for(int64_t count, int64_t grain, Body body, void* context) override {
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, count, grain, body, context));
  }
  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    torch_binding::linear(kGemm, device_, x, weight, bias, y);
  }

 private:
  Device device_;
};

template <class Op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  static const auto kernel = isa::select([](auto set) { return &Op::template cpu<decltype(set)>; });
  call<Op>(
      stack, kernel,
      [](Device device, auto run) {
        TorchCpuHost host(device);
        run(host);
      },
      &Op::outputs);
}

template <class... Ops>
void define(torch::stable::detail::StableLibrary& library, std::tuple<Ops...>*) {
  (library.def(Ops::schema), ...);
}

template <class... Ops>
void implement(torch::stable::detail::StableLibrary& library, std::tuple<Ops...>*) {
  (library.impl(Ops::name, &boxed<Ops>), ...);
}

const bool registered = [] {
  using torch::stable::detail::StableLibrary;
  using torch::stable::detail::StableTorchLibraryInit;
  if (is_first_copy(cpu_version, "fuseconv_cpu")) {
    static const StableTorchLibraryInit schemas(
        StableLibrary::Kind::DEF, [](StableLibrary& library) { define(library, static_cast<AllOps*>(nullptr)); },
        "fuseconv", nullptr, __FILE__, __LINE__);
    static const StableTorchLibraryInit kernels(
        StableLibrary::Kind::IMPL, [](StableLibrary& library) { implement(library, static_cast<AllOps*>(nullptr)); },
        "fuseconv", "CPU", __FILE__, __LINE__);
  }
  return true;
}();

}  // namespace
}  // namespace fuseconv::torch_binding
