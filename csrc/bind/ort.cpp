#include "bind/ort.h"

#include <cctype>
#include <limits>

#include "core/check.h"

namespace fuseconv::ort_binding {
namespace {

const OrtApi* api_of_process = nullptr;

const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

OrtCustomOpInputOutputCharacteristic characteristic(bool optional) {
  return optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

OrtCustomOp callbacks() {
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.GetName = [](const OrtCustomOp* op) { return self(op).name.c_str(); };
  op.GetExecutionProviderType = [](const OrtCustomOp* op) { return self(op).provider; };
  op.GetInputTypeCount = [](const OrtCustomOp* op) { return self(op).inputs.size(); };
  op.GetInputType = [](const OrtCustomOp* op, size_t i) { return element_type(self(op).inputs[i].dtype); };
  op.GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return characteristic(self(op).inputs[i].optional);
  };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetOutputTypeCount = [](const OrtCustomOp* op) { return self(op).outputs; };
  op.GetOutputType = [](const OrtCustomOp* op, size_t) { return element_type(self(op).dtype); };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return characteristic(false); };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  op.CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    return guarded([&] { *kernel = self(op).make(info).release(); });
  };
  op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    return guarded([&] { static_cast<Kernel*>(kernel)->compute(context); });
  };
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

// Returns the message of a status, and releases the status.
std::string message_of(OrtStatus* status) {
  const std::string message = api().GetErrorMessage(status);
  api().ReleaseStatus(status);
  return message;
}

}  // namespace

const OrtApi& api() { return *api_of_process; }

void check(OrtStatus* status) {
  if (status != nullptr) {
    throw std::runtime_error(message_of(status));
  }
}

Dtype dtype_of(ONNXTensorElementDataType type) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::i64}) {
    if (element_type(dtype) == type) {
      return dtype;
    }
  }
  return Dtype::other;
}

ONNXTensorElementDataType element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case Dtype::f64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
    case Dtype::f16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case Dtype::bf16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case Dtype::i64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case Dtype::other:
      break;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

std::string onnx_name(const char* op) {
  std::string name;
  bool begins = true;
  for (; *op != '\0'; ++op) {
    if (*op != '_') {
      name += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(*op))) : *op;
    }
    begins = *op == '_';
  }
  return name;
}

std::vector<std::string> argument_names(const char* schema) {
  std::string_view rest = schema;
  rest.remove_prefix(rest.find('(') + 1);
  rest = rest.substr(0, rest.find(')'));
  std::vector<std::string> names;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(", "), rest.size());
    const std::string_view declared = rest.substr(0, std::min(rest.find('='), comma));
    names.emplace_back(declared.substr(declared.rfind(' ') + 1));
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return names;
}

Tensor::Tensor(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info;
  check(api().GetTensorTypeAndShape(value, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api().ReleaseTensorTypeAndShapeInfo)> kept(
      info, api().ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType type;
  check(api().GetTensorElementType(info, &type));
  size_t rank;
  check(api().GetDimensionsCount(info, &rank));
  fuseconv::check(rank <= kMaxRank, "fuseconv: a tensor has ", rank, " dims; at most ", kMaxRank, " are supported");
  int64_t sizes[kMaxRank];
  check(api().GetDimensions(info, sizes, rank));
  spec_ = contiguous(dtype_of(type), static_cast<int32_t>(rank), sizes);
  // a kernel that takes an In only reads the data
  check(api().GetTensorMutableData(const_cast<OrtValue*>(value), &data_));
  const OrtMemoryInfo* memory;
  check(api().GetTensorMemoryInfo(value, &memory));
  check(api().MemoryInfoGetId(memory, &device_));
}

std::optional<Tensor> input(OrtKernelContext* context, size_t place) {
  size_t count;
  check(api().KernelContext_GetInputCount(context, &count));
  if (place >= count) {
    return std::nullopt;
  }
  const OrtValue* value;
  check(api().KernelContext_GetInput(context, place, &value));
  return value == nullptr ? std::nullopt : std::optional<Tensor>(std::in_place, value);
}

Tensor required_input(OrtKernelContext* context, size_t place) {
  const std::optional<Tensor> tensor = input(context, place);
  fuseconv::check(tensor.has_value(), "fuseconv: input ", place, " is missing");
  return *tensor;
}

Tensor output(OrtKernelContext* context, size_t place, const Spec& spec) {
  OrtValue* value;
  check(api().KernelContext_GetOutput(context, place, spec.sizes, static_cast<size_t>(spec.rank), &value));
  void* data;
  check(api().GetTensorMutableData(value, &data));
  return {contiguous(spec.dtype, spec.rank, spec.sizes), data};
}

// Returns a floating-point attribute as a double. The attribute is a tensor with one element, because an ONNX attribute
// of type FLOAT has too little precision for f64.
double float_attribute(const OrtKernelInfo* info, const std::string& name) {
  OrtAllocator* allocator;
  check(api().GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* value;
  check(api().KernelInfoGetAttribute_tensor(info, name.c_str(), allocator, &value));
  const std::unique_ptr<OrtValue, decltype(api().ReleaseValue)> kept(value, api().ReleaseValue);
  const Tensor tensor(value);
  const In scalar = tensor.read();
  fuseconv::check(scalar.dtype == Dtype::f64 && element_count(scalar) == 1, "fuseconv: the attribute ", name,
                  " must be a tensor of one double");
  return *static_cast<const double*>(scalar.data);
}

int64_t int_attribute(const OrtKernelInfo* info, const std::string& name) {
  int64_t value;
  check(api().KernelInfoGetAttribute_int64(info, name.c_str(), &value));
  return value;
}

std::string string_attribute(const OrtKernelInfo* info, const std::string& name) {
  size_t size = 0;
  check(api().KernelInfoGetAttribute_string(info, name.c_str(), nullptr, &size));
  std::string value(size, '\0');
  check(api().KernelInfoGetAttribute_string(info, name.c_str(), value.data(), &size));
  value.resize(size - 1);  // the size includes the terminator
  return value;
}

std::vector<int64_t> ints_attribute(const OrtKernelInfo* info, const std::string& name) {
  size_t size = 0;
  check(api().KernelInfoGetAttributeArray_int64(info, name.c_str(), nullptr, &size));
  std::vector<int64_t> value(size);
  check(api().KernelInfoGetAttributeArray_int64(info, name.c_str(), value.data(), &size));
  return value;
}

CustomOp::CustomOp(const char* op, const char* provider, Dtype dtype, std::vector<CustomOpInput> inputs, size_t outputs,
                   std::unique_ptr<Kernel> (*make)(const OrtKernelInfo*))
    : OrtCustomOp(callbacks()),
      name(onnx_name(op)),
      provider(provider),
      dtype(dtype),
      inputs(std::move(inputs)),
      outputs(outputs),
      make(make) {}

OrtStatus* register_domain(OrtSessionOptions* options, const OrtApiBase* base,
                           std::vector<std::unique_ptr<CustomOp>> (*ops)()) {
  const OrtApi* found = base->GetApi(kApiVersion);
  if (found == nullptr) {
    return base->GetApi(1)->CreateStatus(
        ORT_FAIL, (std::string("fuseconv needs ONNX Runtime 1.") + std::to_string(kApiVersion) + " or newer, this is " +
                   base->GetVersionString())
                      .c_str());
  }
  api_of_process = found;
  return guarded([&] {
    static OrtCustomOpDomain* const domain = [&] {
      OrtCustomOpDomain* made;
      check(api().CreateCustomOpDomain("com.fuseconv", &made));
      static const std::vector<std::unique_ptr<CustomOp>> kept = ops();
      for (const std::unique_ptr<CustomOp>& op : kept) {
        check(api().CustomOpDomain_Add(made, op.get()));
      }
      return made;
    }();
    check(api().AddCustomOpDomain(options, domain));
  });
}

}  // namespace fuseconv::ort_binding
