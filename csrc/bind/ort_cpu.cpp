// libfuseconv_ort_cpu: all ops for ONNX Runtime's CPU provider.
#include <algorithm>
#include <cstring>
#include <thread>

#include "bind/ort.h"
#include "bind/ort_gemm.h"
#include "core/check.h"
#include "core/isa.h"
#include "kernels/convert.h"
#include "ops/all.h"

namespace fuseconv::ort_binding {
namespace {

// Allocates scratch buffers from the session's allocator, and frees them at the end of the call at the latest.
class Scratch {
 public:
  explicit Scratch(const OrtKernelContext* context) {
    OrtMemoryInfo* memory;
    check(api().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    OrtStatus* status = api().KernelContext_GetAllocator(context, memory, &allocator_);
    api().ReleaseMemoryInfo(memory);
    check(status);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (void* data : kept_) {
      allocator_->Free(allocator_, data);
    }
    api().ReleaseAllocator(allocator_);
  }
  void* get(size_t bytes) {
    kept_.reserve(kept_.size() + 1);
    kept_.push_back(allocator_->Alloc(allocator_, std::max<size_t>(bytes, 1)));
    fuseconv::check(kept_.back() != nullptr, "fuseconv: cannot allocate ", bytes, " bytes of scratch memory");
    return kept_.back();
  }

 private:
  OrtAllocator* allocator_;
  std::vector<void*> kept_;
};

class OrtCpuHost final : public CpuHost {
 public:
  OrtCpuHost(OrtKernelContext* context, Gemm& gemm) : context_(context), gemm_(gemm) {}

  void parallel_for(int64_t count, int64_t grain, Body body, void* context) override {
    static const int64_t most = std::max(1u, std::thread::hardware_concurrency());
    const int64_t pieces = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, most);
    if (pieces == 1) {
      if (count > 0) {
        body(0, count, context);
      }
      return;
    }
    struct Pieces {
      int64_t count, pieces;
      Body body;
      void* context;
    } all{count, pieces, body, context};
    check(api().KernelContext_ParallelFor(
        context_,
        [](void* data, size_t piece) {
          const Pieces& p = *static_cast<const Pieces*>(data);
          const int64_t i = static_cast<int64_t>(piece), each = p.count / p.pieces, longer = p.count % p.pieces;
          const int64_t begin = i * each + std::min(i, longer);
          p.body(begin, begin + each + (i < longer ? 1 : 0), p.context);
        },
        static_cast<size_t>(pieces), 0, &all));
  }

  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    fuseconv::check(is_contiguous(x) && is_contiguous(weight), "fuseconv: ONNX Runtime's Gemm takes dense operands");
    const int64_t n = weight.sizes[0], k = weight.sizes[1];
    product(x.data, weight.data, bias ? bias->data : nullptr, 1.0, n == 0 ? 0 : element_count(y) / n, n, k, y.dtype,
            y.data);
  }

  void batched_product(In a, In b, double scale, Out y) override {
    const int64_t m = y.sizes[y.rank - 2], n = y.sizes[y.rank - 1], k = a.sizes[a.rank - 1];
    const In matrices_of_a = leading(a), matrices_of_b = leading(b);
    fuseconv::check(is_dense_matrix(a) && is_dense_matrix(b), "fuseconv: ONNX Runtime's Gemm takes dense operands");
    const int64_t batch = m * n == 0 ? 0 : element_count(y) / (m * n), element = size_of(y.dtype);
    for (int64_t i = 0; i < batch; ++i) {
      product(at(matrices_of_a, i), at(matrices_of_b, i), nullptr, scale, m, n, k, y.dtype,
              static_cast<char*>(y.data) + i * m * n * element);
    }
  }

  In convolution(In, In, std::optional<In>, const ConvolutionParameters&) override {
    // unreachable: no op that calls this is registered
    throw std::logic_error("fuseconv: ONNX Runtime has Conv itself");
  }

  void* scratch(size_t bytes) override {
    if (!scratch_) {
      scratch_.emplace(context_);
    }
    return scratch_->get(bytes);
  }

 private:
  static In leading(In x) { return {x.data, x.dtype, x.rank - 2, x.sizes, x.strides}; }
  static bool is_dense_matrix(In x) {
    return is_contiguous({x.data, x.dtype, 2, x.sizes + x.rank - 2, x.strides + x.rank - 2});
  }
  // Returns the address of the element with this row-major index.
  static const void* at(In x, int64_t index) {
    int64_t offset = 0;
    for (int axis = x.rank - 1; axis >= 0; --axis) {
      offset += index % x.sizes[axis] * x.strides[axis];
      index /= x.sizes[axis];
    }
    return static_cast<const char*>(x.data) + offset * size_of(x.dtype);
  }

  // Computes y[m, n] = scale * a[m, k] b[n, k]^T + bias[n]. In f16 and bf16, the operands are widened and y is rounded
  // once.
  void product(const void* a, const void* b, const void* bias, double scale, int64_t m, int64_t n, int64_t k,
               Dtype dtype, void* y) {
    if (m == 0 || n == 0) {
      return;
    }
    const size_t row = static_cast<size_t>(n * size_of(dtype));
    if (k == 0) {
      for (int64_t i = 0; i < m; ++i) {
        void* to = static_cast<char*>(y) + static_cast<size_t>(i) * row;
        bias == nullptr ? std::memset(to, 0, row) : std::memcpy(to, bias, row);
      }
      return;
    }
    Scratch scratch(context_);
    const bool widens = dtype == Dtype::f16 || dtype == Dtype::bf16;
    const Dtype compute = widens ? Dtype::f32 : dtype;
    const auto operand = [&](const void* data, int64_t count, double factor) {
      if (data == nullptr || (!widens && factor == 1.0)) {
        return data;
      }
      void* copy = scratch.get(static_cast<size_t>(count * size_of(compute)));
      convert(data, dtype, factor, count, copy, compute);
      return static_cast<const void*>(copy);
    };
    void* result = widens ? scratch.get(static_cast<size_t>(m * n) * sizeof(float)) : y;
    gemm_.run(context_, compute, m, n, k, operand(a, m * k, scale), operand(b, n * k, 1.0), operand(bias, n, 1.0),
              result);
    if (widens) {
      convert(result, compute, 1.0, m * n, y, dtype);
    }
  }

  void convert(const void* x, Dtype from, double factor, int64_t count, void* y, Dtype to) {
    static const auto kernel = isa::select([](auto set) { return &Convert::cpu<decltype(set)>; });
    const int64_t one = 1;
    kernel(*this, {x, from, 1, &count, &one}, factor, {y, to, 1, &count, &one});
  }

  OrtKernelContext* context_;
  Gemm& gemm_;
  std::optional<Scratch> scratch_;
};

class Cpu {
 public:
  static constexpr const char* kName = nullptr;
  explicit Cpu(const OrtKernelInfo* info) : gemm_(info) {}

  template <class Op, class Call>
  void run(OrtKernelContext* context, const Tensor&, Call call) {
    static const auto kernel = isa::select([](auto set) { return &OpKernel<Op, CpuTarget<decltype(set)>>::run; });
    OrtCpuHost host(context, gemm_);
    call(kernel, host);
  }

 private:
  Gemm gemm_;
};

}  // namespace
}  // namespace fuseconv::ort_binding

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace fuseconv;
  return ort_binding::register_domain(
      options, base, [] { return ort_binding::custom_ops<ort_binding::Cpu>(static_cast<AllOps*>(nullptr)); });
}
