// libfuseconv_ort_cuda: all ops for ONNX Runtime's CUDA provider, on the provider's stream.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "bind/ort.h"
#include "core/check.h"
#include "gemm/cublaslt.h"
#include "gemm/pass.h"
#include "ops/all.h"

namespace fuseconv::ort_binding {
namespace {

void check_cuda(cudaError_t status, const char* call) {
  fuseconv::check(status == cudaSuccess, "fuseconv: ", call, ": ", cudaGetErrorString(status));
}

// Makes a device the current device for the lifetime of this object.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { cudaSetDevice(before_); }

 private:
  int before_;
};

// Returns a memory pool of the device that keeps freed memory. ONNX Runtime's arena does not know on which stream
// memory freed by a custom op is still in use. This pool does, even during graph capture.
cudaMemPool_t memory_pool(int device) {
  static std::mutex mutex;
  static std::vector<cudaMemPool_t> pools;
  const std::lock_guard lock(mutex);
  pools.resize(std::max(pools.size(), static_cast<size_t>(device) + 1));
  cudaMemPool_t& pool = pools[static_cast<size_t>(device)];
  if (pool == nullptr) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    check_cuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
    uint64_t all = UINT64_MAX;
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
  }
  return pool;
}

class OrtCudaHost final : public CudaHost {
 public:
  OrtCudaHost(int device, void* stream) : device_(device), stream_(stream) {}
  OrtCudaHost(const OrtCudaHost&) = delete;
  OrtCudaHost& operator=(const OrtCudaHost&) = delete;
  ~OrtCudaHost() {
    for (void* data : kept_) {
      cudaFreeAsync(data, static_cast<cudaStream_t>(stream_));
    }
  }

  void* stream() override { return stream_; }

  In convolution(In, In, std::optional<In>, const ConvolutionParameters&) override {
    // unreachable: no op that calls this is registered
    throw std::logic_error("fuseconv: ONNX Runtime has Conv itself");
  }

  void* scratch(size_t bytes) override {
    kept_.reserve(kept_.size() + 1);
    void* data;
    check_cuda(cudaMallocFromPoolAsync(&data, std::max<size_t>(bytes, 1), memory_pool(device_),
                                       static_cast<cudaStream_t>(stream_)),
               "cudaMallocFromPoolAsync");
    kept_.push_back(data);
    return data;
  }

  void linear(In x, In weight, std::optional<In> bias, Out y) override {
    linear::Problem problem = with_workspace();
    run(problem, x, weight, bias, y);
  }

  // Runs without a workspace, because the host's workspace may be used only on the host's own stream.
  void linear_on(void* stream, In x, In weight, std::optional<In> bias, Out y) override {
    linear::Problem problem{};
    problem.stream = stream;
    run(problem, x, weight, bias, y);
  }

  void batched_product(In a, In b, double scale, Out y) override {
    const int64_t m = y.sizes[y.rank - 2], n = y.sizes[y.rank - 1], k = a.sizes[a.rank - 1];
    fuseconv::check(is_dense_matrix(a) && is_dense_matrix(b), "fuseconv: the product of a batch takes dense matrices");
    if (element_count(y) == 0) {
      return;
    }
    if (k == 0) {
      return zero(stream_, y);
    }
    linear::Problem problem = with_workspace();
    problem.element = y.dtype;
    problem.m = m;
    problem.n = problem.y_stride = n;
    problem.k = problem.x_stride = problem.weight_stride = k;
    // The leading dims are merged where the strides of both operands allow it. The innermost merged dim becomes the
    // batch of a cuBLAS call, and there is one call for each index of the other dims.
    const Loop loop = element_loop(leading(Out(y)), {leading(a), leading(b)});
    const int inner = loop.rank - 1;
    problem.batch = static_cast<int32_t>(loop.sizes[inner]);
    problem.x_batch_stride = loop.strides[1][inner];
    problem.weight_batch_stride = loop.strides[2][inner];
    for (int64_t i = 0; i < loop.count() / loop.sizes[inner]; ++i) {
      int64_t offsets[3] = {0, 0, 0}, rest = i;
      for (int axis = inner - 1; axis >= 0; --axis) {
        for (int operand = 0; operand < 3; ++operand) {
          offsets[operand] += rest % loop.sizes[axis] * loop.strides[operand][axis];
        }
        rest /= loop.sizes[axis];
      }
      const auto at = [&](const void* data, int64_t offset) {
        return static_cast<const char*>(data) + offset * size_of(y.dtype);
      };
      problem.y = const_cast<char*>(at(y.data, offsets[0]));
      problem.x = at(a.data, offsets[1]);
      problem.weight = at(b.data, offsets[2]);
      linear::cublaslt::run(problem, 0, scale);
    }
  }

 private:
  template <class View>
  static View leading(View x) {
    return {x.data, x.dtype, x.rank - 2, x.sizes, x.strides};
  }
  static bool is_dense_matrix(In x) {
    return is_contiguous({x.data, x.dtype, 2, x.sizes + x.rank - 2, x.strides + x.rank - 2});
  }

  static void zero(void* stream, Out y) {
    check_cuda(cudaMemsetAsync(y.data, 0, static_cast<size_t>(element_count(y) * size_of(y.dtype)),
                               static_cast<cudaStream_t>(stream)),
               "cudaMemsetAsync");
  }

  linear::Problem with_workspace() {
    linear::Problem problem{};
    problem.stream = stream_;
    problem.workspace = scratch(linear::kWorkspaceBytes);
    problem.workspace_bytes = linear::kWorkspaceBytes;
    return problem;
  }

  // Computes y = x weight^T + bias with the first algorithm that cuBLAS proposes, on the problem's stream and in its
  // workspace.
  static void run(linear::Problem& problem, In x, In weight, std::optional<In> bias, Out y) {
    fuseconv::check(is_contiguous(x) && is_contiguous(weight), "fuseconv: the product of a layer takes dense operands");
    problem.element = y.dtype;
    problem.n = problem.y_stride = weight.sizes[0];
    problem.k = problem.x_stride = problem.weight_stride = weight.sizes[1];
    problem.m = problem.n == 0 ? 0 : element_count(y) / problem.n;
    if (problem.m == 0) {
      return;
    }
    problem.x = x.data;
    problem.weight = weight.data;
    problem.bias = bias ? bias->data : nullptr;
    problem.y = y.data;
    if (problem.k == 0) {
      zero(problem.stream, y);
      return linear::pass(problem);
    }
    if (linear::cublaslt::algorithms(problem) > 0) {
      return linear::cublaslt::run(problem, 0);
    }
    problem.bias = nullptr;  // cuBLAS has no bias epilogue for this dtype
    linear::cublaslt::run(problem, 0);
    problem.bias = bias ? bias->data : nullptr;
    linear::pass(problem);
  }

  int device_;
  void* stream_;
  std::vector<void*> kept_;
};

class Cuda {
 public:
  static constexpr const char* kName = "CUDAExecutionProvider";
  explicit Cuda(const OrtKernelInfo*) {}

  template <class Op, class Call>
  void run(OrtKernelContext* context, const Tensor& first, Call call) {
    const DeviceGuard guard(first.device());
    void* stream;
    check(api().KernelContext_GetGPUComputeStream(context, &stream));
    OrtCudaHost host(first.device(), stream);
    call(&OpKernel<Op, CudaTarget>::run, host);
  }
};

}  // namespace
}  // namespace fuseconv::ort_binding

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace fuseconv;
  return ort_binding::register_domain(
      options, base, [] { return ort_binding::custom_ops<ort_binding::Cuda>(static_cast<AllOps*>(nullptr)); });
}
