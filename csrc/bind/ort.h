// The code that the CPU and the CUDA library for ONNX Runtime share. Every op becomes one custom op per dtype in the
// domain com.fuseconv, generated from the same declaration as for torch. Only the C API is used, in the oldest version
// that suffices.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/layout.h"
#include "core/op.h"
#include "core/tensor_view.h"

namespace fuseconv::ort_binding {

// ONNX Runtime 1.17, the first version in which a custom op may use the session's threads.
inline constexpr uint32_t kApiVersion = 17;

// Returns the C API of the ONNX Runtime in this process. Must not be called before ONNX Runtime registers the library.
const OrtApi& api();

// Throws if the status of a C API call is an error.
void check(OrtStatus* status);

// Runs the body. Returns null, or the status that describes the exception if the body throws.
template <class Body>
OrtStatus* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return api().CreateStatus(ORT_FAIL, error.what());
  }
}

Dtype dtype_of(ONNXTensorElementDataType type);
ONNXTensorElementDataType element_type(Dtype dtype);

// Returns the ONNX name of an op, such as "LinearAct" for "linear_act".
std::string onnx_name(const char* op);

// Returns the names of an op's arguments in order, read from its schema.
std::vector<std::string> argument_names(const char* schema);

// An input or output of a call. ONNX Runtime's tensors are contiguous.
class Tensor {
 public:
  explicit Tensor(const OrtValue* value);
  Tensor(const Spec& spec, void* data) : spec_(spec), data_(data) {}
  In read() const { return {data_, spec_.dtype, spec_.rank, spec_.sizes, spec_.strides}; }
  Out write() const { return {data_, spec_.dtype, spec_.rank, spec_.sizes, spec_.strides}; }
  int device() const { return device_; }  // the index of the device

 private:
  Spec spec_;
  void* data_;
  int device_ = 0;
};

// Returns the input at index `place`, or std::nullopt if the node omits the input.
std::optional<Tensor> input(OrtKernelContext* context, size_t place);
// Does the same as `input`, but throws std::runtime_error, whose message gives the index, if the node omits the input.
Tensor required_input(OrtKernelContext* context, size_t place);
Tensor output(OrtKernelContext* context, size_t place, const Spec& spec);

double float_attribute(const OrtKernelInfo* info, const std::string& name);
int64_t int_attribute(const OrtKernelInfo* info, const std::string& name);
std::string string_attribute(const OrtKernelInfo* info, const std::string& name);
std::vector<int64_t> ints_attribute(const OrtKernelInfo* info, const std::string& name);

struct CustomOpInput {
  Dtype dtype;
  bool optional;
};

// The value of an argument that is an attribute of the node, read when the kernel is created. Empty for other
// arguments.
using AttributeValue = std::variant<std::monostate, double, int64_t, bool, std::string, std::vector<int64_t>>;

// Stands for an argument while a custom op is declared: adds the argument to `inputs` if it is a tensor. See core/op.h.
struct DeclaredArgument {
  std::vector<CustomOpInput>& inputs;
  Dtype dtype;

  operator In() { return add({dtype, false}); }
  operator InI64() { return add({Dtype::i64, false}); }
  operator std::optional<In>() { return add({dtype, true}); }
  operator int64_t() { return {}; }
  operator double() { return {}; }
  operator bool() { return {}; }
  operator std::string_view() { return {}; }
  operator std::span<const int64_t>() { return {}; }

 private:
  In add(CustomOpInput input) {
    inputs.push_back(input);
    return {};
  }
};

// Stands for an argument while a kernel is created: reads the argument into `attribute` if it is not a tensor.
struct NodeArgument {
  const OrtKernelInfo* info;
  const std::string& name;
  AttributeValue& attribute;

  operator In() { return {}; }
  operator InI64() { return In{}; }
  operator std::optional<In>() { return std::nullopt; }
  operator int64_t() { return keep(int_attribute(info, name)); }
  operator double() { return keep(float_attribute(info, name)); }
  operator bool() { return keep(int_attribute(info, name) != 0); }
  operator std::string_view() { return keep(string_attribute(info, name)); }
  operator std::span<const int64_t>() { return keep(ints_attribute(info, name)); }

 private:
  template <class T>
  const T& keep(T value) {
    return attribute.emplace<T>(std::move(value));
  }
};

// Stands for an argument during a call. Its value is the next unused input of the node or, if the argument is not a
// tensor, the value that NodeArgument read.
struct CallArgument {
  OrtKernelContext* context;
  const AttributeValue& attribute;
  std::optional<Tensor>& tensor;
  size_t& inputs;

  operator In() { return tensor.emplace(required_input(context, inputs++)).read(); }
  operator InI64() { return In(*this); }
  operator std::optional<In>() {
    tensor = input(context, inputs++);
    return tensor ? std::optional<In>(tensor->read()) : std::nullopt;
  }
  operator int64_t() { return std::get<int64_t>(attribute); }
  operator double() { return std::get<double>(attribute); }
  operator bool() { return std::get<bool>(attribute); }
  operator std::string_view() { return std::get<std::string>(attribute); }
  operator std::span<const int64_t>() { return std::get<std::vector<int64_t>>(attribute); }
};

// The kernel that ONNX Runtime creates for a node.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void compute(OrtKernelContext* context) = 0;
};

// A custom op for one dtype, derived from the struct of callbacks that ONNX Runtime expects.
struct CustomOp : OrtCustomOp {
  std::string name;
  const char* provider;  // null for the CPU
  Dtype dtype;
  std::vector<CustomOpInput> inputs;
  size_t outputs;
  std::unique_ptr<Kernel> (*make)(const OrtKernelInfo* info);

  CustomOp(const char* op, const char* provider, Dtype dtype, std::vector<CustomOpInput> inputs, size_t outputs,
           std::unique_ptr<Kernel> (*make)(const OrtKernelInfo*));
};

// A kernel of Op on a provider. A Provider defines
//   Provider(const OrtKernelInfo*)                                  creates one object per node
//   run<Op>(context, first input, call)                             calls call(kernel, host)
template <class Op, class Provider>
class NodeKernel final : public Kernel {
 public:
  NodeKernel(const OrtKernelInfo* info, const std::vector<std::string>& names) : provider_(info) {
    make_args<Op>([&](size_t i) { return NodeArgument{info, names[i], attributes_[i]}; });
  }

  void compute(OrtKernelContext* context) override {
    size_t inputs = 0;
    std::array<std::optional<Tensor>, kArguments<Op>> tensors;
    const auto args =
        make_args<Op>([&](size_t i) { return CallArgument{context, attributes_[i], tensors[i], inputs}; });
    const std::array<Spec, kResults<Op>> specs = Op::outputs(args);
    [&]<size_t... O>(std::index_sequence<O...>) {
      const std::array<Tensor, kResults<Op>> results{output(context, O, specs[O])...};
      provider_.template run<Op>(context, *tensors[0],
                                 [&](auto kernel, auto& host) { kernel(host, args, {results[O].write()...}); });
    }(std::make_index_sequence<kResults<Op>>());
  }

 private:
  Provider provider_;
  std::array<AttributeValue, kArguments<Op>> attributes_;
};

// An op that is not available in ONNX Runtime declares `static constexpr bool in_onnx_runtime = false`.
template <class Op>
concept AbsentFromOnnxRuntime = !Op::in_onnx_runtime;

template <class Op, class Provider>
void add_custom_ops(std::vector<std::unique_ptr<CustomOp>>& ops) {
  if constexpr (AbsentFromOnnxRuntime<Op>) {
    return;
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    std::vector<CustomOpInput> inputs;
    make_args<Op>([&](size_t) { return DeclaredArgument{inputs, dtype}; });
    ops.push_back(std::make_unique<CustomOp>(Op::name, Provider::kName, dtype, std::move(inputs), kResults<Op>,
                                             [](const OrtKernelInfo* info) -> std::unique_ptr<Kernel> {
                                               static const auto names = argument_names(Op::schema);
                                               return std::make_unique<NodeKernel<Op, Provider>>(info, names);
                                             }));
  }
}

// Returns the custom ops of a provider, one per dtype for every op of the tuple that is available in ONNX Runtime.
template <class Provider, class... Ops>
std::vector<std::unique_ptr<CustomOp>> custom_ops(std::tuple<Ops...>*) {
  std::vector<std::unique_ptr<CustomOp>> ops;
  (add_custom_ops<Ops, Provider>(ops), ...);
  return ops;
}

// Adds the library's custom ops to the session options. Calls `ops` once per process, to create the custom ops, which
// live until the process ends. Returns null or an error status.
OrtStatus* register_domain(OrtSessionOptions* options, const OrtApiBase* base,
                           std::vector<std::unique_ptr<CustomOp>> (*ops)());

}  // namespace fuseconv::ort_binding
