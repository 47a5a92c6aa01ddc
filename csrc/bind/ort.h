// What the two ONNX Runtime libraries share: every op as a custom op of the domain com.fuseconv, one for each dtype,
// from the declaration that also torch has. C API only, asked for in its oldest version that suffices.
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
#include <vector>

#include "core/layout.h"
#include "core/tensor_view.h"

namespace fuseconv::ort_binding {

// ONNX Runtime 1.17: the first in which a custom op may use the session's threads.
inline constexpr uint32_t kApiVersion = 17;

// The process's ONNX Runtime; set when it registers the library.
const OrtApi& api();

// Throws what a call of the C API reports.
void check(OrtStatus* status);

// Runs the body; an exception becomes a status.
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

// "linear_act" is LinearAct.
std::string onnx_name(const char* op);

// The names of an op's arguments, in order, read from its schema.
std::vector<std::string> argument_names(const char* schema);

// A tensor of the call: ONNX Runtime's are contiguous.
class Tensor {
 public:
  explicit Tensor(const OrtValue* value);
  Tensor(const Spec& spec, void* data) : spec_(spec), data_(data) {}
  In read() const { return {data_, spec_.dtype, spec_.rank, spec_.sizes, spec_.strides}; }
  Out write() const { return {data_, spec_.dtype, spec_.rank, spec_.sizes, spec_.strides}; }
  int device() const { return device_; }  // its index

 private:
  Spec spec_;
  void* data_;
  int device_ = 0;
};

// The input of that place, or none where the node omits it.
std::optional<Tensor> input(OrtKernelContext* context, size_t place);
// What `input` finds, or an exception that names the argument.
Tensor required_input(OrtKernelContext* context, size_t place);
Tensor output(OrtKernelContext* context, size_t place, const Spec& spec);

double float_attribute(const OrtKernelInfo* info, const std::string& name);
int64_t int_attribute(const OrtKernelInfo* info, const std::string& name);
std::string string_attribute(const OrtKernelInfo* info, const std::string& name);
std::vector<int64_t> ints_attribute(const OrtKernelInfo* info, const std::string& name);

// An argument of an op, by the type that the kernel sees: made with the kernel, and got anew in each call. A tensor is
// an input of the node, `kDtype` says of which dtype where that is not the op's own; all else is an attribute.
template <class T>
struct Argument;

struct TensorArgument {
  static constexpr bool kTensor = true, kOptional = false;
  static constexpr std::optional<Dtype> kDtype = std::nullopt;
  size_t place;
  TensorArgument(const OrtKernelInfo*, const std::string&, size_t& inputs) : place(inputs++) {}
};
template <>
struct Argument<In> : TensorArgument {
  using TensorArgument::TensorArgument;
  Tensor get(OrtKernelContext* context) const { return required_input(context, place); }
};
template <>
struct Argument<InI64> : Argument<In> {
  using Argument<In>::Argument;
  static constexpr std::optional<Dtype> kDtype = Dtype::i64;
};
template <>
struct Argument<std::optional<In>> : TensorArgument {
  using TensorArgument::TensorArgument;
  static constexpr bool kOptional = true;
  std::optional<Tensor> get(OrtKernelContext* context) const { return input(context, place); }
};

template <class Value>
struct AttributeArgument {
  static constexpr bool kTensor = false;
  Value value;
  const Value& get(OrtKernelContext*) const { return value; }
};
template <>
struct Argument<double> : AttributeArgument<double> {
  Argument(const OrtKernelInfo* info, const std::string& name, size_t&)
      : AttributeArgument{float_attribute(info, name)} {}
};
template <>
struct Argument<int64_t> : AttributeArgument<int64_t> {
  Argument(const OrtKernelInfo* info, const std::string& name, size_t&)
      : AttributeArgument{int_attribute(info, name)} {}
};
template <>
struct Argument<bool> : AttributeArgument<bool> {
  Argument(const OrtKernelInfo* info, const std::string& name, size_t&)
      : AttributeArgument{int_attribute(info, name) != 0} {}
};
template <>
struct Argument<std::string_view> : AttributeArgument<std::string> {
  Argument(const OrtKernelInfo* info, const std::string& name, size_t&)
      : AttributeArgument{string_attribute(info, name)} {}
};
template <>
struct Argument<std::span<const int64_t>> : AttributeArgument<std::vector<int64_t>> {
  Argument(const OrtKernelInfo* info, const std::string& name, size_t&)
      : AttributeArgument{ints_attribute(info, name)} {}
};

inline In view(const Tensor& tensor) { return tensor.read(); }
inline std::optional<In> view(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional<In>(tensor->read()) : std::nullopt;
}
inline std::string_view view(const std::string& text) { return text; }
inline std::span<const int64_t> view(const std::vector<int64_t>& numbers) { return numbers; }
inline double view(double value) { return value; }
inline int64_t view(int64_t value) { return value; }
inline bool view(bool value) { return value; }

// What ONNX Runtime makes of a node.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void compute(OrtKernelContext* context) = 0;
};

// One op in one dtype, as ONNX Runtime asks about it.
struct CustomOp : OrtCustomOp {
  struct Input {
    Dtype dtype;
    bool optional;
  };
  std::string name;
  const char* provider;  // null: the CPU's
  Dtype dtype;
  std::vector<Input> inputs;
  size_t outputs;
  std::unique_ptr<Kernel> (*make)(const OrtKernelInfo* info);

  CustomOp(const char* op, const char* provider, Dtype dtype, std::vector<Input> inputs, size_t outputs,
           std::unique_ptr<Kernel> (*make)(const OrtKernelInfo*));
};

// A kernel of Op on a provider, which has
//   Provider(const OrtKernelInfo*)                                  one for each node
//   run<Op>(context, first input, call)                             calls call(kernel, host)
template <class Op, class Provider, class Indices, class Results, class... Args>
class OpKernel;

template <class Op, class Provider, size_t... I, size_t... O, class... Args>
class OpKernel<Op, Provider, std::index_sequence<I...>, std::index_sequence<O...>, Args...> final : public Kernel {
 public:
  OpKernel(const OrtKernelInfo* info, const std::vector<std::string>& names, size_t inputs = 0)
      : provider_(info), arguments_{Argument<Args>(info, names[I], inputs)...} {}

  void compute(OrtKernelContext* context) override {
    const auto owners = std::make_tuple(std::get<I>(arguments_).get(context)...);
    const std::array<Spec, sizeof...(O)> specs = Op::outputs(view(std::get<I>(owners))...);
    const std::array<Tensor, sizeof...(O)> results{output(context, O, specs[O])...};
    provider_.template run<Op>(context, std::get<0>(owners), [&](auto kernel, auto& host) {
      kernel(host, view(std::get<I>(owners))..., results[O].write()...);
    });
  }

 private:
  Provider provider_;
  std::tuple<Argument<Args>...> arguments_;
};

template <class Op, class Provider, size_t N, class... Args>
void add_custom_ops(std::vector<std::unique_ptr<CustomOp>>& ops, std::array<Spec, N> (*)(Args...)) {
  using Made = OpKernel<Op, Provider, std::index_sequence_for<Args...>, std::make_index_sequence<N>, Args...>;
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    std::vector<CustomOp::Input> inputs;
    const auto add = [&]<class A>(A*) {
      if constexpr (A::kTensor) {
        inputs.push_back({A::kDtype.value_or(dtype), A::kOptional});
      }
    };
    (add(static_cast<Argument<Args>*>(nullptr)), ...);
    ops.push_back(std::make_unique<CustomOp>(Op::name, Provider::kName, dtype, std::move(inputs), N,
                                             [](const OrtKernelInfo* info) -> std::unique_ptr<Kernel> {
                                               static const auto names = argument_names(Op::schema);
                                               return std::make_unique<Made>(info, names);
                                             }));
  }
}

// All ops of the tuple for a provider.
template <class Provider, class... Ops>
std::vector<std::unique_ptr<CustomOp>> custom_ops(std::tuple<Ops...>*) {
  std::vector<std::unique_ptr<CustomOp>> ops;
  (add_custom_ops<Ops, Provider>(ops, &Ops::outputs), ...);
  return ops;
}

// Puts the library's ops into a session's options. `ops` are made once, and live as long as the process.
OrtStatus* register_domain(OrtSessionOptions* options, const OrtApiBase* base,
                           std::vector<std::unique_ptr<CustomOp>> (*ops)());

}  // namespace fuseconv::ort_binding
