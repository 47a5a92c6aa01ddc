// libfuseconv_cuda: CUDA kernels of all ops, for torch. Loaded after libfuseconv_cpu, which has the schemas.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/accelerator.h>

#include "bind/torch.h"
#include "ops/all.h"

namespace fuseconv::torch_binding {

// Inline and visible, hence one object in a process however many copies of the library it loads (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline const char* cuda_version = nullptr;

namespace {

constexpr GemmShims kGemm{aoti_torch_cuda_addmm_out, aoti_torch_cuda_mm_out};

class TorchCudaHost final : public CudaHost {
 public:
  explicit TorchCudaHost(Device device) : device_(device) {}

  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    torch_binding::linear(kGemm, device_, x, weight, bias, y);
  }
  void* stream() override {
    void* stream;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_.index, &stream));
    return stream;
  }

 private:
  Device device_;
};

template <class Op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  call<Op>(
      stack, &Op::cuda,
      [](Device device, auto run) {
        const torch::stable::accelerator::DeviceGuard guard(device.index);
        TorchCudaHost host(device);
        run(host);
      },
      &Op::outputs);
}

template <class... Ops>
void implement(torch::stable::detail::StableLibrary& library, std::tuple<Ops...>*) {
  (library.impl(Ops::name, &boxed<Ops>), ...);
}

const bool registered = [] {
  using torch::stable::detail::StableLibrary;
  using torch::stable::detail::StableTorchLibraryInit;
  if (is_first_copy(cuda_version, "fuseconv_cuda")) {
    static const StableTorchLibraryInit kernels(
        StableLibrary::Kind::IMPL, [](StableLibrary& library) { implement(library, static_cast<AllOps*>(nullptr)); },
        "fuseconv", "CUDA", __FILE__, __LINE__);
  }
  return true;
}();

}  // namespace
}  // namespace fuseconv::torch_binding
