#include "gemm/cublaslt_problem.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

namespace fuseconv::linear::cublaslt {
namespace {

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
void set(cublasLtMatmulPreferenceOpaque_t* preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

cublasComputeType_t compute_type(const Problem& p) {
  if (p.element == Element::f64) {
    return CUBLAS_COMPUTE_64F;
  }
  return p.element == Element::f32 && p.tf32 != 0 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cudaDataType_t scale_type(const Problem& p) { return p.element == Element::f64 ? CUDA_R_64F : CUDA_R_32F; }

// Calls `visit` for each attribute of an algorithm's configuration except the id, with the attribute and a value of its
// type.
template <class Visit>
void for_each_attribute(Visit visit) {
  visit(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{});
  visit(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t{});
  visit(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{});
}

template <class T>
void set(cublasLtMatrixLayoutOpaque_t* layout, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof(value)), "cublasLtMatrixLayoutSetAttribute");
}

}  // namespace

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("fuseconv::linear_act: ") + call + ": " + cublasLtGetStatusString(status));
  }
}

std::string name_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string name;
  const auto add = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    size_t written;
    check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written),
          "cublasLtMatmulAlgoConfigGetAttribute");
    name.append(name.empty() ? "" : ".").append(std::to_string(value));
  };
  add(CUBLASLT_ALGO_CONFIG_ID, int32_t{});
  for_each_attribute(add);
  return name;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(cublasLtHandle_t lt, const Problem& p, const std::string& name) {
  const char *next = name.data(), *const end = next + name.size();
  bool valid = true;
  const auto read = [&](auto& value) {
    const auto [stop, error] = std::from_chars(next, end, value);
    valid = valid && error == std::errc() && (stop == end || *stop == '.');
    next = stop == end ? end : stop + 1;
  };
  int32_t id = 0;
  read(id);
  const cudaDataType_t type = data_type(p.element);
  cublasLtMatmulAlgo_t algorithm{};
  valid = valid && cublasLtMatmulAlgoInit(lt, compute_type(p), scale_type(p), type, type, type, type, id, &algorithm) ==
                       CUBLAS_STATUS_SUCCESS;
  for_each_attribute([&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    read(value);
    valid = valid &&
            cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  });
  return valid && next == end ? std::optional(algorithm) : std::nullopt;
}

Descriptors describe(const Problem& p) {
  Descriptors d;
  check(cublasLtMatmulDescInit(&d.operation, compute_type(p), scale_type(p)), "cublasLtMatmulDescInit");
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
  return d;
}

std::vector<Proposal> propose(cublasLtHandle_t lt, const Problem& p, Descriptors& d) {
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
  std::vector<Proposal> algorithms;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    return algorithms;
  }
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < found; ++i) {
    if (proposals[i].state == CUBLAS_STATUS_SUCCESS && proposals[i].workspaceSize <= p.workspace_bytes) {
      algorithms.push_back({proposals[i].algo, proposals[i].workspaceSize});
    }
  }
  return algorithms;
}

}  // namespace fuseconv::linear::cublaslt
