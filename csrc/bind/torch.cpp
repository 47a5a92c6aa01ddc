// libfuseconv_cpu: the schemas of all ops and their CPU kernels, for torch.
#include "bind/torch.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include "bind/c_shim.h"
#include "bind/registry.h"
#include "bind/torch_boxed.h"
#include "core/isa.h"
#include "ops/all.h"

namespace fuseconv::torch_binding {
namespace {

constexpr GemmShims kGemm{aoti_torch_cpu_addmm_out, aoti_torch_cpu_mm_out, aoti_torch_cpu_baddbmm_out};

class TorchCpuHost final : public CpuHost {
 public:
  explicit TorchCpuHost(Device device) : device_(device), scratch_(device) {}

  void parallel_for(int64_t count, int64_t grain, Body body, void* context) override {
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, count, grain, body, context));
  }
  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    torch_binding::linear(kGemm, device_, x, weight, bias, y);
  }
  void batched_product(In a, In b, double scale, Out y) override {
    torch_binding::batched_product(kGemm, device_, a, b, scale, y);
  }
  In convolution(In x, In weight, std::optional<In> bias, const ConvolutionParameters& parameters) override {
    return torch_binding::convolution(&aoti_torch_cpu_convolution, device_, scratch_, x, weight, bias, parameters);
  }
  void* scratch(size_t bytes) override { return scratch_.get(bytes); }

 private:
  Device device_;
  Scratch scratch_;
};

constexpr auto kOnHost = [](Device device, auto run) {
  TorchCpuHost host(device);
  return run(host);
};

template <class Op>
auto kernel() {
  static const auto selected = isa::select([](auto set) { return &OpKernel<Op, CpuTarget<decltype(set)>>::run; });
  return selected;
}

template <class Op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  call_boxed<Op>(stack, kernel<Op>(), kOnHost);
}

template <class Op>
AOTITorchError c_shim(const void* const* arguments, AtenTensorHandle* const* results) {
  return call_from_c<Op>(arguments, results, kernel<Op>(), kOnHost);
}

template <class Op>
void register_op(Registration& own) {
  using torch::stable::detail::StableLibrary;
  if (!claim(cpu_registrations, own)) {
    return;
  }
  static StableLibrary schema(StableLibrary::Kind::FRAGMENT, "fuseconv", nullptr, __FILE__, __LINE__);
  schema.def(Op::schema);
  static StableLibrary kernel(StableLibrary::Kind::IMPL, "fuseconv", "CPU", __FILE__, __LINE__);
  kernel.impl(Op::name, &boxed<Op>);
}

// Registers the ops that no other copy has registered, or none if there is a conflict. Returns the conflict.
template <class... Ops>
std::string register_all(std::tuple<Ops...>*) {
  static Registration own[] = {{Ops::name, Ops::schema, &c_shim<Ops>, nullptr}...};
  std::string found = conflict_of({cpu_registrations}, own);
  if (found.empty()) {
    Registration* next = own;
    (register_op<Ops>(*next++), ...);
  }
  return found;
}

const std::string conflict = register_all(static_cast<AllOps*>(nullptr));

}  // namespace
}  // namespace fuseconv::torch_binding

// Returns the C shim of an op on the CPU, or null if no op of that name is registered. Every AOTInductor package calls
// this function once per op. The shim belongs to the copy of the library that registered the op, which may be any copy
// in the process.
extern "C" __attribute__((visibility("default"))) fuseconv::torch_binding::CShim fuseconv_cpu_c_shim(const char* op) {
  using namespace fuseconv::torch_binding;
  const Registration* found = find(cpu_registrations, op);
  return found == nullptr ? nullptr : found->c_shim;
}

// Returns why this copy of the library registered no ops, or null if it registered those that no other copy had
// registered. A loader finds this function through the handle of the library that it has just opened.
extern "C" __attribute__((visibility("default"))) const char* fuseconv_conflict() {
  using fuseconv::torch_binding::conflict;
  return conflict.empty() ? nullptr : conflict.c_str();
}
