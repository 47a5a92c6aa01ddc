#include "gemm/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "gemm/cuda_check.h"

namespace fuseconv::linear::cublaslt {
namespace {

constexpr int kProposals = 16;
constexpr size_t kMostPlans = 16384;  // of 2 KB each; then they are made again, in tens of microseconds

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("fuseconv::linear_act: ") + call + ": " + cublasLtGetStatusString(status));
  }
}

// cuBLAS is column-major: it computes y^T [n, m] = weight [n, k] x^T [k, m], with the bias along the rows of y^T.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, residual, y;
};

struct Plan {
  Descriptors descriptors;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
};

// Everything that a plan depends on.
using Key = std::tuple<int, Element, Activation, std::array<int64_t, 10>, std::array<int, 5>, int, size_t>;

// The largest power of two, up to 256, that divides an address.
int alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address == 0 ? 256 : static_cast<int>(std::min<uintptr_t>(address & (~address + 1), 256));
}

int current_device() {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

Key key_of(const Problem& p) {
  return {current_device(),
          p.element,
          p.activation,
          {p.m, p.n, p.k, p.x_stride, p.weight_stride, p.residual != nullptr ? p.residual_stride : 0, p.y_stride,
           p.batch, p.x_batch_stride, p.weight_batch_stride},
          {alignment(p.x), alignment(p.weight), alignment(p.residual), alignment(p.y), p.bias != nullptr},
          (p.tf32 != 0 ? 1 : 0) | (p.weight_transposed != 0 ? 2 : 0),
          p.workspace_bytes};
}

cudaDataType_t data_type(Element element) {
  switch (element) {
    case Element::f64:
      return CUDA_R_64F;
    case Element::f32:
      return CUDA_R_32F;
    case Element::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_16BF;
  }
}

cublasLtEpilogue_t epilogue(const Problem& p) {
  const bool bias = p.bias != nullptr;
  switch (p.activation) {
    case Activation::relu:
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu_tanh:
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

template <class T>
void set(cublasLtMatmulDescOpaque_t* operation, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t* preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

template <class T>
void set(cublasLtMatrixLayoutOpaque_t* layout, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof(value)), "cublasLtMatrixLayoutSetAttribute");
}

class Library {
 public:
  cublasLtHandle_t handle() {
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = handles_[current_device()];
    if (handle == nullptr) {
      check(cublasLtCreate(&handle), "cublasLtCreate");
    }
    return handle;
  }

  // Creating a plan may query cuBLAS, which is allowed during stream capture.
  std::shared_ptr<const Plan> plan(const Problem& p) {
    const cublasLtHandle_t lt = handle();
    const Key key = key_of(p);
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) {
      return found->second;
    }
    if (plans_.size() >= kMostPlans) {
      plans_.clear();
    }
    return plans_[key] = make(lt, p);
  }

 private:
  static std::shared_ptr<const Plan> make(cublasLtHandle_t lt, const Problem& p) {
    auto plan = std::make_shared<Plan>();
    Descriptors& d = plan->descriptors;
    const bool wide = p.element == Element::f64;
    const cublasComputeType_t compute = wide                                       ? CUBLAS_COMPUTE_64F
                                        : p.element == Element::f32 && p.tf32 != 0 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                                   : CUBLAS_COMPUTE_32F;
    check(cublasLtMatmulDescInit(&d.operation, compute, wide ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescInit");
    set(&d.operation, CUBLASLT_MATMUL_DESC_TRANSA, p.weight_transposed != 0 ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(&d.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(&d.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p));
    if (p.bias != nullptr) {
      set(&d.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    const cudaDataType_t type = data_type(p.element);
    const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, int64_t rows, int64_t columns, int64_t stride,
                            int64_t batch_stride) {
      check(cublasLtMatrixLayoutInit(&to, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
            "cublasLtMatrixLayoutInit");
      if (p.batch > 0) {
        set(&to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, p.batch);
        set(&to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
      }
    };
    const int64_t weight_rows = p.weight_transposed != 0 ? p.n : p.k;
    layout(d.weight, weight_rows, p.n + p.k - weight_rows, p.weight_stride, p.weight_batch_stride);
    layout(d.x, p.k, p.m, p.x_stride, p.x_batch_stride);
    layout(d.residual, p.n, p.m, p.residual != nullptr ? p.residual_stride : p.y_stride, p.m * p.y_stride);
    layout(d.y, p.n, p.m, p.y_stride, p.m * p.y_stride);

    cublasLtMatmulPreferenceOpaque_t preference;
    check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
    set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(alignment(p.weight)));
    set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(alignment(p.x)));
    set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        static_cast<uint32_t>(alignment(p.residual != nullptr ? p.residual : p.y)));
    set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(alignment(p.y)));

    std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals;
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt, &d.operation, &d.weight, &d.x, &d.residual, &d.y,
                                                                 &preference, kProposals, proposals.data(), &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      return plan;
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < found; ++i) {
      if (proposals[i].state == CUBLAS_STATUS_SUCCESS && proposals[i].workspaceSize <= p.workspace_bytes) {
        plan->algorithms.push_back(proposals[i].algo);
      }
    }
    return plan;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
};

// Handles and plans are not destroyed, because CUDA may have shut down before a static destructor runs.
Library& library() {
  static Library* const library = new Library;
  return *library;
}

// y = factor (weight x) + bias, and so on.
void multiply(const Problem& p, int algorithm, double factor) {
  const std::shared_ptr<const Plan> plan = library().plan(p);
  if (algorithm < 0 || algorithm >= static_cast<int>(plan->algorithms.size())) {
    throw std::runtime_error("fuseconv::linear_act: cuBLAS proposes " + std::to_string(plan->algorithms.size()) +
                             " algorithms, so there is none of rank " + std::to_string(algorithm));
  }
  Descriptors d = plan->descriptors;  // cuBLAS takes non-const pointers, and the bias differs per call
  if (p.bias != nullptr) {
    set(&d.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  const bool wide = p.element == Element::f64;
  const double alpha64 = factor, beta64 = p.residual != nullptr ? 1.0 : 0.0;
  const float alpha32 = static_cast<float>(factor), beta32 = static_cast<float>(beta64);
  const void* alpha = wide ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  check(cublasLtMatmul(library().handle(), &d.operation, alpha, p.weight, &d.weight, p.x, &d.x, beta,
                       p.residual != nullptr ? p.residual : p.y, &d.residual, p.y, &d.y,
                       &plan->algorithms[static_cast<size_t>(algorithm)], p.workspace, p.workspace_bytes,
                       static_cast<cudaStream_t>(p.stream)),
        "cublasLtMatmul");
}

template <class T>
bool all_nan(const std::vector<char>& bytes) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, &bytes[i], sizeof(T));
    if (value == value) {
      return false;
    }
  }
  return true;
}

// f16 has 5 bits of exponent, bf16 has 8.
bool all_nan(const std::vector<char>& bytes, Element element) {
  if (element == Element::f64) {
    return all_nan<double>(bytes);
  }
  if (element == Element::f32) {
    return all_nan<float>(bytes);
  }
  const uint16_t infinity = element == Element::f16 ? 0x7c00 : 0x7f80;
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, &bytes[i], 2);
    if ((bits & 0x7fff) <= infinity) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string refuses(const Problem& p) {
  if (p.m < 1 || p.n < 1 || p.k < 1) {
    return "a size is 0";
  }
  if (p.gated != 0) {
    return "cuBLAS has no epilogue that multiplies gates and ups";
  }
  switch (p.activation) {
    case Activation::none:
      return "";
    case Activation::relu:
      break;
    case Activation::gelu_tanh:
      // Seen with cuBLAS 13.1: errors of 2e-6 in f32 and 2e-10 in f64, ten and a million times the rounding error.
      if (p.element == Element::f32 || p.element == Element::f64) {
        return "its gelu is only as exact as 16-bit elements need";
      }
      break;
    default:
      return "cuBLAS has no epilogue for this activation";
  }
  return p.residual != nullptr ? "its residual is added before the activation" : "";
}

int algorithms(const Problem& p) {
  return refuses(p).empty() ? static_cast<int>(library().plan(p)->algorithms.size()) : 0;
}

void run(const Problem& p, int algorithm, double scale) {
  if (const std::string reason = refuses(p); !reason.empty()) {
    throw std::runtime_error("fuseconv::linear_act: backend cublaslt refuses: " + reason);
  }
  multiply(p, algorithm, scale);
}

bool keeps_nan(const Problem& p, int algorithm) {
  multiply(p, algorithm, std::numeric_limits<double>::quiet_NaN());
  const size_t element = static_cast<size_t>(size_of(p.element));
  std::vector<char> rows(static_cast<size_t>(2 * p.n) * element);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  const size_t row = static_cast<size_t>(p.n) * element;
  for (const int64_t place : {int64_t{0}, p.m - 1}) {
    cuda_check(cudaMemcpyAsync(rows.data() + (place == 0 ? 0 : row),
                               static_cast<const char*>(p.y) + static_cast<size_t>(place * p.y_stride) * element, row,
                               cudaMemcpyDeviceToHost, stream),
               "cudaMemcpyAsync");
  }
  cuda_check(cudaStreamSynchronize(stream), "an algorithm");
  rows.resize(p.m > 1 ? 2 * row : row);
  return all_nan(rows, p.element);
}

std::string name_of(const Problem& p, int algorithm) {
  const std::shared_ptr<const Plan> plan = library().plan(p);
  if (algorithm < 0 || algorithm >= static_cast<int>(plan->algorithms.size())) {
    return "";
  }
  const cublasLtMatmulAlgo_t& algo = plan->algorithms[static_cast<size_t>(algorithm)];
  std::string name;
  const auto add = [&]<class T>(T, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    T value{};
    size_t written;
    check(cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value, &written),
          "cublasLtMatmulAlgoConfigGetAttribute");
    name.append(name.empty() ? "" : ".").append(std::to_string(value));
  };
  add(int32_t{}, CUBLASLT_ALGO_CONFIG_ID);
  add(uint32_t{}, CUBLASLT_ALGO_CONFIG_TILE_ID);
  add(uint32_t{}, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add(int32_t{}, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  add(uint32_t{}, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  add(uint32_t{}, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  add(uint32_t{}, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  add(uint16_t{}, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  add(uint16_t{}, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return name;
}

size_t version() { return cublasLtGetVersion(); }

}  // namespace fuseconv::linear::cublaslt
