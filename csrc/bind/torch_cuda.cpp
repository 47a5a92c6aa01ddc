// libfuseconv_cuda: the CUDA kernels of all ops, for torch. Loaded after libfuseconv_cpu, which defines the schemas.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/accelerator.h>

#include <memory>

#include "bind/c_shim.h"
#include "bind/registry.h"
#include "bind/torch.h"
#include "bind/torch_boxed.h"
#include "ops/all.h"

namespace fuseconv::torch_binding {

// The ops that are registered for CUDA, shared like cpu_registrations.
__attribute__((visibility("default"))) inline const Registration* cuda_registrations = nullptr;

namespace {

constexpr GemmShims kGemm{aoti_torch_cuda_addmm_out, aoti_torch_cuda_mm_out, aoti_torch_cuda_baddbmm_out};

class TorchCudaHost final : public CudaHost {
 public:
  explicit TorchCudaHost(Device device) : device_(device), scratch_(device) {}

  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    torch_binding::linear(kGemm, device_, x, weight, bias, y);
  }
  void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) override {
    CUDAStreamGuardHandle guard;
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_stream_guard(stream, device_.index, &guard));
    const std::unique_ptr<CUDAStreamGuardOpaque, decltype(&aoti_torch_delete_cuda_stream_guard)> kept(
        guard, &aoti_torch_delete_cuda_stream_guard);
    linear(x, weight, bias, y);
  }
  void batched_product(In a, In b, double scale, Out y) override {
    torch_binding::batched_product(kGemm, device_, a, b, scale, y);
  }
  In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) override {
    return torch_binding::convolution(&aoti_torch_cuda_convolution, device_, scratch_, x, weight, bias, parameters);
  }
  void* scratch(size_t bytes) override { return scratch_.get(bytes); }
  void* stream() override {
    void* stream;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_.index, &stream));
    return stream;
  }

 private:
  Device device_;
  Scratch scratch_;
};

constexpr auto kOnHost = [](Device device, auto run) {
  const torch::stable::accelerator::DeviceGuard guard(device.index);
  TorchCudaHost host(device);
  return run(host);
};

template <class Op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  call_boxed<Op>(stack, &OpKernel<Op, CudaTarget>::run, kOnHost);
}

template <class Op>
AOTITorchError c_shim(const void* const* arguments, AtenTensorHandle* const* results) {
  return call_from_c<Op>(arguments, results, &OpKernel<Op, CudaTarget>::run, kOnHost);
}

template <class Op>
void register_op(Registration& own) {
  using torch::stable::detail::StableLibrary;
  if (!claim(cuda_registrations, own)) {
    return;
  }
  static StableLibrary kernel(StableLibrary::Kind::IMPL, "fuseconv", "CUDA", __FILE__, __LINE__);
  kernel.impl(Op::name, &boxed<Op>);
}

// Registers the ops that no other copy has registered, or none if there is a conflict. Returns the conflict.
template <class... Ops>
std::string register_all(std::tuple<Ops...>*) {
  static Registration own[] = {{Ops::name, Ops::schema, &c_shim<Ops>, nullptr}...};
  std::string found = conflict_of({cpu_registrations, cuda_registrations}, own);
  if (found.empty()) {
    Registration* next = own;
    (register_op<Ops>(*next++), ...);
  }
  return found;
}

const std::string conflict = register_all(static_cast<AllOps*>(nullptr));

}  // namespace
}  // namespace fuseconv::torch_binding

// Returns the C shim of an op on CUDA, as fuseconv_cpu_c_shim does for the CPU.
extern "C" __attribute__((visibility("default"))) fuseconv::torch_binding::CShim fuseconv_cuda_c_shim(const char* op) {
  using namespace fuseconv::torch_binding;
  const Registration* found = find(cuda_registrations, op);
  return found == nullptr ? nullptr : found->c_shim;
}

// Returns why this copy of the library registered no ops, or null if it registered those that no other copy had
// registered. A loader finds this function through the handle of the library that it has just opened.
extern "C" __attribute__((visibility("default"))) const char* fuseconv_conflict() {
  using fuseconv::torch_binding::conflict;
  return conflict.empty() ? nullptr : conflict.c_str();
}
