#include "bind/ort_gemm.h"

#include <type_traits>

namespace fuseconv::ort_binding {
namespace {

constexpr int kGemmVersion = 13;

class Value {
 public:
  Value(const OrtMemoryInfo* memory, Dtype dtype, const void* data, std::initializer_list<int64_t> sizes) {
    size_t count = 1;
    for (const int64_t size : sizes) {
      count *= static_cast<size_t>(size);
    }
    check(api().CreateTensorWithDataAsOrtValue(memory, const_cast<void*>(data),
                                               count * static_cast<size_t>(size_of(dtype)), sizes.begin(), sizes.size(),
                                               element_type(dtype), &value));
  }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() { api().ReleaseValue(value); }

  OrtValue* value;
};

class Attribute {
 public:
  template <class T>
  Attribute(const char* name, T number) {
    check(api().CreateOpAttr(name, &number, 1, std::is_same_v<T, float> ? ORT_OP_ATTR_FLOAT : ORT_OP_ATTR_INT,
                             &attribute));
  }
  Attribute(const Attribute&) = delete;
  Attribute& operator=(const Attribute&) = delete;
  ~Attribute() { api().ReleaseOpAttr(attribute); }

  OrtOpAttr* attribute;
};

}  // namespace

Gemm::Gemm(const OrtKernelInfo* info) {
  check(api().CopyKernelInfo(info, &info_));
  check(api().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory_));
}

Gemm::~Gemm() {
  for (const auto& pair : ops_) {
    for (OrtOp* op : pair) {
      if (op != nullptr) {
        api().ReleaseOp(op);
      }
    }
  }
  api().ReleaseMemoryInfo(memory_);
  api().ReleaseKernelInfo(info_);
}

const OrtOp* Gemm::op(Dtype dtype, bool has_bias) {
  const std::lock_guard lock(mutex_);
  OrtOp*& op = ops_[dtype == Dtype::f64][has_bias];
  if (op == nullptr) {
    // All attributes are set explicitly, because ONNX Runtime does not apply the defaults of the operator's schema
    // outside a graph.
    const Attribute a("transA", int64_t{0}), b("transB", int64_t{1}), alpha("alpha", 1.0f), beta("beta", 1.0f);
    const OrtOpAttr* attributes[] = {a.attribute, b.attribute, alpha.attribute, beta.attribute};
    const char* names[] = {"T"};
    const ONNXTensorElementDataType types[] = {element_type(dtype)};
    check(api().CreateOp(info_, "Gemm", "", kGemmVersion, names, types, 1, attributes, 4, has_bias ? 3 : 2, 1, &op));
  }
  return op;
}

void Gemm::run(const OrtKernelContext* context, Dtype dtype, int64_t m, int64_t n, int64_t k, const void* a,
               const void* b, const void* bias, void* y) {
  const Value a_value(memory_, dtype, a, {m, k}), b_value(memory_, dtype, b, {n, k}),
      y_value(memory_, dtype, y, {m, n});
  std::optional<Value> bias_value;
  if (bias != nullptr) {
    bias_value.emplace(memory_, dtype, bias, std::initializer_list<int64_t>{n});
  }
  const OrtValue* inputs[] = {a_value.value, b_value.value, bias_value ? bias_value->value : nullptr};
  OrtValue* outputs[] = {y_value.value};
  check(api().InvokeOp(context, op(dtype, bias != nullptr), inputs, bias_value ? 3 : 2, outputs, 1));
}

}  // namespace fuseconv::ort_binding
