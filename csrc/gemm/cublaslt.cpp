#include "gemm/cublaslt.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "gemm/cublaslt_problem.h"
#include "gemm/cuda_check.h"
#include "gemm/ends_are_nan.h"

namespace fuseconv::linear::cublaslt {
namespace {

constexpr int kNone = -1;  // the rank of a name for which cuBLAS has no algorithm
// plans of 2 KB each; when the limit is reached, they are created anew, in tens of microseconds
constexpr size_t kMostPlans = 16384;

struct Plan {
  Descriptors descriptors;
  std::optional<std::vector<Proposal>> proposals;  // set once cuBLAS was asked
  std::map<int, std::optional<size_t>> named;      // the workspace of named algorithms, if they run the problem
  bool runs = false;                               // whether a named algorithm does
};

// What a call of cublasLtMatmul needs for a problem and a chosen algorithm.
struct Ready {
  cublasLtHandle_t handle;
  Descriptors descriptors;
  cublasLtMatmulAlgo_t algorithm;
};

// Everything that a plan depends on.
using Key = std::tuple<int, Element, Activation::Name, std::array<int64_t, 10>, std::array<int, 5>, int, size_t>;

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

// Thread-safe. The functions may be called during stream capture.
class Library {
 public:
  int proposals(const Problem& p) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(proposals_of(plan_of(p), p).size());
  }

  bool runs(const Problem& p) {
    const std::lock_guard lock(mutex_);
    Plan& plan = plan_of(p);
    return plan.runs || !proposals_of(plan, p).empty();
  }

  // Returns the rank of the algorithm of that name, or std::nullopt if it cannot compute the problem.
  std::optional<int> named(const Problem& p, const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = ranks_.try_emplace({p.element, p.tf32 != 0, name}, kNone);
    if (is_new) {
      if (const std::optional<cublasLtMatmulAlgo_t> algorithm = algorithm_of(handle(), p, name)) {
        found->second = kProposals + static_cast<int>(named_.size());
        named_.push_back(*algorithm);
      }
    }
    if (found->second == kNone) {
      return std::nullopt;
    }
    return workspace_of_named(plan_of(p), p, found->second) ? std::optional(found->second) : std::nullopt;
  }

  size_t workspace_bytes(const Problem& p, int rank) {
    const std::lock_guard lock(mutex_);
    return proposal_of(plan_of(p), p, rank).workspace_bytes;
  }

  Ready ready(const Problem& p, int rank) {
    const std::lock_guard lock(mutex_);
    Plan& plan = plan_of(p);
    return {handle(), plan.descriptors, proposal_of(plan, p, rank).algorithm};
  }

 private:
  // Returns the algorithm of a rank. Throws std::runtime_error if there is none that runs the problem.
  Proposal proposal_of(Plan& plan, const Problem& p, int rank) {
    if (rank >= kProposals && rank - kProposals < static_cast<int>(named_.size())) {
      if (const std::optional<size_t> workspace = workspace_of_named(plan, p, rank)) {
        return {named_[static_cast<size_t>(rank - kProposals)], *workspace};
      }
    } else if (rank >= 0 && rank < static_cast<int>(proposals_of(plan, p).size())) {
      return (*plan.proposals)[static_cast<size_t>(rank)];
    }
    throw std::runtime_error("fuseconv::linear_act: cuBLAS has no algorithm of rank " + std::to_string(rank) +
                             " that computes the problem");
  }

  // Returns the size in bytes of the workspace of a named algorithm, or std::nullopt if it cannot compute the problem.
  std::optional<size_t> workspace_of_named(Plan& plan, const Problem& p, int rank) {
    const auto [known, is_new] = plan.named.try_emplace(rank);
    if (is_new) {
      Descriptors& d = plan.descriptors;
      cublasLtMatmulHeuristicResult_t result;
      const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle(), &d.operation, &d.weight, &d.x, &d.residual, &d.y,
                                                            &named_[static_cast<size_t>(rank - kProposals)], &result);
      if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= p.workspace_bytes) {
        known->second = result.workspaceSize;
        plan.runs = true;
      }
    }
    return known->second;
  }

  cublasLtHandle_t handle() {
    cublasLtHandle_t& handle = handles_[current_device()];
    if (handle == nullptr) {
      check(cublasLtCreate(&handle), "cublasLtCreate");
    }
    return handle;
  }

  Plan& plan_of(const Problem& p) {
    const Key key = key_of(p);
    const auto found = plans_.find(key);
    if (found != plans_.end()) {
      return found->second;
    }
    if (plans_.size() >= kMostPlans) {
      plans_.clear();
    }
    return plans_[key] = {describe(p), std::nullopt, {}, false};
  }

  const std::vector<Proposal>& proposals_of(Plan& plan, const Problem& p) {
    if (!plan.proposals) {
      plan.proposals = propose(handle(), p, plan.descriptors);
    }
    return *plan.proposals;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, Plan> plans_;
  std::vector<cublasLtMatmulAlgo_t> named_;
  // ranks of the algorithms in named_; they follow the ranks of proposals
  std::map<std::tuple<Element, bool, std::string>, int> ranks_;
};

// Handles and plans are not destroyed, because CUDA may have shut down before a static destructor runs.
Library& library() {
  static Library* const library = new Library;
  return *library;
}

// Computes y = factor (x weight^T), plus the residual if there is one, and applies the epilogue.
void multiply(const Problem& p, int algorithm, double factor) {
  auto [handle, d, chosen] = library().ready(p, algorithm);
  if (p.bias != nullptr) {  // the plan may have been made with another bias
    set(&d.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  const bool wide = p.element == Element::f64;
  const double alpha64 = factor, beta64 = p.residual != nullptr ? 1.0 : 0.0;
  const float alpha32 = static_cast<float>(factor), beta32 = static_cast<float>(beta64);
  const void* alpha = wide ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  check(cublasLtMatmul(handle, &d.operation, alpha, p.weight, &d.weight, p.x, &d.x, beta,
                       p.residual != nullptr ? p.residual : p.y, &d.residual, p.y, &d.y, &chosen, p.workspace,
                       p.workspace != nullptr ? p.workspace_bytes : 0, static_cast<cudaStream_t>(p.stream)),
        "cublasLtMatmul");
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
      // cuBLAS 13.1 was seen to have errors of 2e-6 in f32 and 2e-10 in f64: ten times and a million times the rounding
      // error.
      if (p.element == Element::f32 || p.element == Element::f64) {
        return "its gelu is only as exact as 16-bit elements need";
      }
      break;
    default:
      return "cuBLAS has no epilogue for this activation";
  }
  return p.residual != nullptr && p.residual_first == 0 ? "it adds a residual before the activation" : "";
}

int algorithms(const Problem& p) { return refuses(p).empty() ? library().proposals(p) : 0; }

bool runs(const Problem& p) { return refuses(p).empty() && library().runs(p); }

std::optional<int> named(const Problem& p, const std::string& name) {
  return refuses(p).empty() ? library().named(p, name) : std::nullopt;
}

size_t workspace_bytes(const Problem& p, int algorithm) { return library().workspace_bytes(p, algorithm); }

void run(const Problem& p, int algorithm, double scale) {
  if (const std::string reason = refuses(p); !reason.empty()) {
    throw std::runtime_error("fuseconv::linear_act: backend cublaslt refuses: " + reason);
  }
  multiply(p, algorithm, scale);
}

bool keeps_nan(const Problem& p, int algorithm) {
  multiply(p, algorithm, std::numeric_limits<double>::quiet_NaN());
  return ends_are_nan(p.y, p.element, p.n, (p.m - 1) * p.y_stride, static_cast<cudaStream_t>(p.stream));
}

std::string name_of(const Problem& p, int algorithm) { return name_of(library().ready(p, algorithm).algorithm); }

size_t version() { return cublasLtGetVersion(); }

}  // namespace fuseconv::linear::cublaslt
