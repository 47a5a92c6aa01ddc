// libfuseconv_cuda: CUDA kernels of all ops, for torch. Loaded after libfuseconv_cpu, which has the schemas.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/accelerator.h>

#include "bind/registry.h"
#include "bind/torch.h"
#include "ops/all.h"

namespace fuseconv::torch_binding {

// Inline and visible, hence one object in a process however many copies of the library it loads (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline const Registration* cuda_registrations = nullptr;

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
  void* scratch(size_t bytes) override {
    const int64_t count = static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
    // Freed with the host, after the launches: the caching allocator hands it out again in the order of the stream.
    scratch_.push_back(allocate(contiguous(Dtype::f32, 1, &count), device_));
    return scratch_.back().mutable_data_ptr();
  }

 private:
  Device device_;
  std::vector<Tensor> scratch_;
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

template <class Op>
void register_op() {
  using torch::stable::detail::StableLibrary;
  static Registration own{Op::name, Op::schema, nullptr};
  if (!claim(cuda_registrations, own)) {
    return;
  }
  static StableLibrary kernel(StableLibrary::Kind::IMPL, "fuseconv", "CUDA", __FILE__, __LINE__);
  kernel.impl(Op::name, &boxed<Op>);
}

template <class... Ops>
bool register_all(std::tuple<Ops...>*) {
  (register_op<Ops>(), ...);
  return true;
}

const bool registered = register_all(static_cast<AllOps*>(nullptr));

}  // namespace
}  // namespace fuseconv::torch_binding
