#include "gemm/backends.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "gemm/cublaslt.h"
#include "gemm/pass.h"
#include "gemm/sm80.h"
#include "gemm/sm90.h"
#include "gemm/tf32x3.h"

namespace fuseconv::linear {
namespace {

constexpr int kAlgorithmsInTwo = 8;
constexpr int64_t kFewTiles = int64_t{64} * 64 * 48;
constexpr int64_t kFewRows = 16;  // up to this many rows of x, the time to read the weight dominates

// Returns the problem that computes only the product and the bias of `p`. For a gated layer, its y is the scratch
// buffer.
Problem sum_of(const Problem& p) {
  Problem product = p;
  product.activation = Activation::none;
  product.residual = nullptr;
  if (p.gated != 0) {
    product.gated = 0;
    product.n = product.y_stride = 2 * p.n;
    product.y = p.scratch;
  }
  return product;
}

// Returns the part of a problem that cuBLAS computes for backend `cublas`. It includes the bias if cuBLAS can add it,
// because the sum is then rounded only once.
Problem product_of(const Problem& p) {
  Problem product = sum_of(p);
  if (!cublaslt::runs(product)) {
    product.bias = nullptr;
  }
  return product;
}

// Computes the part of a layer that remains after its product. If `has_bias`, the product already includes the bias.
void finish(const Problem& p, bool has_bias) {
  Problem rest = p;
  rest.bias = has_bias ? nullptr : p.bias;
  if (p.gated != 0 || rest.bias != nullptr || rest.residual != nullptr || rest.activation != Activation::none) {
    pass(rest);
  }
}

// Returns the memory for a product that an elementwise pass follows.
void* product_memory(const Problem& p) {
  if (p.gated != 0 && p.scratch == nullptr) {
    throw std::runtime_error("fuseconv::linear_act: a gated layer in two kernels needs scratch memory");
  }
  return p.gated != 0 ? p.scratch : p.y;
}

void run_in_two(const Problem& p, int algorithm) {
  product_memory(p);
  const Problem product = product_of(p);
  cublaslt::run(product, algorithm);
  finish(p, product.bias != nullptr);
}

// Returns the candidates for a convolution.
std::vector<Choice> convolution_candidates(const Problem& p) {
  std::vector<Choice> found;
  if (sm90::refuses(p).empty()) {
    for (const sm90::Configuration& configuration : sm90::configurations(p)) {
      found.push_back({Backend::sm90, sm90::encode(configuration)});
    }
  }
  if (tf32x3::refuses(p).empty()) {
    for (const int shape : tf32x3::shapes(p)) {
      found.push_back({Backend::tf32x3, shape});
    }
  }
  if (refuses(Backend::cudnn, p).empty()) {
    found.insert(needs_no_engine(p) ? found.end() : found.begin(), {Backend::cudnn, 0});
  }
  return found;
}

// Returns the candidates for a linear layer whose x is a matrix, among them all of backend `only`. If not `all`,
// returns at least the first.
std::vector<Choice> matrix_candidates(const Problem& p, std::optional<Backend> only, bool all) {
  std::vector<Choice> fused, called;
  const bool hopper = refuses(Backend::sm90, p).empty();
  if (hopper) {
    for (const sm90::Configuration& configuration : sm90::configurations(p)) {
      fused.push_back({Backend::sm90, sm90::encode(configuration)});
    }
  }
  // Where sm90 is available, sm80 is slower.
  if ((!hopper || only == Backend::sm80) && refuses(Backend::sm80, p).empty()) {
    for (const int shape : sm80::shapes(p)) {
      fused.push_back({Backend::sm80, shape});
    }
  }
  // cuBLAS uses split-K if there are few tiles; fuseconv's kernels do not.
  const bool few_tiles = p.m * p.n < kFewTiles && p.k > p.n;
  std::vector<Choice> emulated;
  if (refuses(Backend::tf32x3, p).empty()) {
    for (const int shape : tf32x3::shapes(p)) {
      emulated.push_back({Backend::tf32x3, shape});
    }
  }
  const bool few_rows = p.m < kFewRows;
  if (!few_tiles && !few_rows) {
    fused.insert(fused.end(), emulated.begin(), emulated.end());
  }
  // If the weight just fits in L2, repeated timings can show a gated layer in two kernels as faster. It is not faster
  // in a model, where the weight is read from device memory.
  if (!fused.empty() && !few_tiles && !only && (!all || (p.gated != 0 && hopper))) {
    return fused;
  }
  const bool unchecked = p.activation == Activation::relu && p.relu_checked == 0;
  const bool one_call = !unchecked && only != Backend::cublas && refuses(Backend::cublaslt, p).empty();
  if (one_call) {
    for (int i = 0; i < cublaslt::algorithms(p); ++i) {
      called.push_back({Backend::cublaslt, i});
    }
  } else {
    for (int i = 0; i < std::min(kAlgorithmsInTwo, cublaslt::algorithms(product_of(p))); ++i) {
      called.push_back({Backend::cublas, i});
    }
  }
  if (few_tiles || few_rows) {
    called.insert(called.end(), emulated.begin(), emulated.end());
  }
  std::vector<Choice>& first = one_call && few_tiles ? called : fused;
  std::vector<Choice>& second = one_call && few_tiles ? fused : called;
  first.insert(first.end(), second.begin(), second.end());
  if (refuses(Backend::aten, p).empty()) {
    first.push_back({Backend::aten, 0});
  }
  return first;
}

std::vector<Choice> candidates(const Problem& p, std::optional<Backend> only, bool all) {
  if (p.gated != 0 && p.residual != nullptr) {
    return {};
  }
  std::vector<Choice> found = p.is_convolution() ? convolution_candidates(p) : matrix_candidates(p, only, all);
  if (only) {
    std::erase_if(found, [&](Choice choice) { return choice.backend != *only; });
  }
  return found;
}

void run_by_host(const Problem& p) {
  p.product(p.context, p.stream, product_memory(p));
  finish(p, true);
}

}  // namespace

std::string refuses(Backend backend, const Problem& p) {
  if (p.gated != 0 && p.residual != nullptr) {
    return "a gated layer has no residual";
  }
  constexpr std::array kConvolutions = {Backend::sm90, Backend::tf32x3, Backend::cudnn};
  if (p.is_convolution() && std::ranges::find(kConvolutions, backend) == kConvolutions.end()) {
    return "the problem is a convolution";
  }
  switch (backend) {
    case Backend::cublaslt:
      if (const std::string reason = cublaslt::refuses(p); !reason.empty()) {
        return reason;
      }
      return cublaslt::runs(p) ? "" : "cuBLAS proposes no algorithm";
    case Backend::sm90:
      return sm90::refuses(p);
    case Backend::sm80:
      return sm80::refuses(p);
    case Backend::tf32x3:
      return tf32x3::refuses(p);
    case Backend::aten:
      return p.product == nullptr ? "the host has no product of its own" : "";
    case Backend::cudnn:
      return !p.is_convolution()    ? "the problem is no convolution"
             : p.product == nullptr ? "cuDNN does not support the convolution"
                                    : "";
    default:
      return cublaslt::runs(product_of(p)) ? "" : "cuBLAS proposes no algorithm";
  }
}

std::vector<Choice> candidates(const Problem& p, std::optional<Backend> only) { return candidates(p, only, true); }

std::optional<Choice> untimed_choice(const Problem& p, std::optional<Backend> only) {
  const std::vector<Choice> found = candidates(p, only, false);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

bool needs_no_engine(const Problem& p) {
  if (!p.is_convolution() || !sm90::refuses(p).empty()) {
    return false;
  }
  constexpr int64_t kTile = 64;
  const auto padded = [](int64_t size) { return (size + kTile - 1) / kTile * kTile; };
  const int64_t channels = p.windows.channels, columns = p.n / p.windows.groups;
  return padded(channels) * padded(columns) <= 4 * channels * columns;
}

size_t scratch_bytes(const Problem& p, Choice choice) {
  const bool in_two = choice.backend == Backend::cublas || choice.backend == Backend::aten;
  return p.gated != 0 && in_two ? static_cast<size_t>(p.m * 2 * p.n * size_of(p.element)) : 0;
}

size_t workspace_bytes(const Problem& p, Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return cublaslt::workspace_bytes(p, choice.variant);
    case Backend::cublas:
      return cublaslt::workspace_bytes(product_of(p), choice.variant);
    default:
      return 0;
  }
}

void run(const Problem& p, Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return cublaslt::run(p, choice.variant);
    case Backend::sm90:
      return sm90::run(p, sm90::decode(choice.variant));
    case Backend::sm80:
      return sm80::run(p, choice.variant);
    case Backend::tf32x3:
      return tf32x3::run(p, choice.variant);
    case Backend::aten:
      return run_by_host(p);
    case Backend::cudnn:
      return p.product(p.context, p.stream, p.y);
    default:
      return run_in_two(p, choice.variant);
  }
}

std::string name_of(const Problem& p, Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return "cublaslt " + cublaslt::name_of(p, choice.variant);
    case Backend::cublas:
      return "cublas " + cublaslt::name_of(product_of(p), choice.variant);
    default:
      return to_string(choice);
  }
}

std::optional<Choice> named(const Problem& p, const std::string& name) {
  const size_t space = name.find(' ');
  const auto backend = std::find(kBackends.begin(), kBackends.end(), name.substr(0, space));
  if (backend == kBackends.end()) {
    return std::nullopt;
  }
  const auto is = static_cast<Backend>(backend - kBackends.begin());
  if (is == Backend::cublaslt || is == Backend::cublas) {
    if (space == std::string::npos) {
      return std::nullopt;
    }
    const std::string algorithm = name.substr(space + 1);
    std::optional<int> rank = cublaslt::named(is == Backend::cublas ? sum_of(p) : p, algorithm);
    if (!rank && is == Backend::cublas && p.bias != nullptr && product_of(p).bias == nullptr) {
      rank = cublaslt::named(product_of(p), algorithm);
    }
    return rank ? std::optional(Choice{is, *rank}) : std::nullopt;
  }
  if (!refuses(is, p).empty()) {
    return std::nullopt;
  }
  std::vector<Choice> choices;
  const auto add = [&](int variant) { choices.push_back({is, variant}); };
  switch (is) {
    case Backend::sm90:
      for (const sm90::Configuration& configuration : sm90::configurations(p)) {
        add(sm90::encode(configuration));
      }
      break;
    case Backend::sm80:
      std::ranges::for_each(sm80::shapes(p), add);
      break;
    case Backend::tf32x3:
      std::ranges::for_each(tf32x3::shapes(p), add);
      break;
    default:
      add(0);
  }
  const auto found = std::ranges::find_if(choices, [&](Choice choice) { return to_string(choice) == name; });
  return found == choices.end() ? std::nullopt : std::optional(*found);
}

std::string to_string(Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return "cublaslt algorithm " + std::to_string(choice.variant);
    case Backend::sm90:
      return "sm90 " + sm90::to_string(sm90::decode(choice.variant));
    case Backend::sm80:
      return std::string("sm80 ") + sm80::kShapes[choice.variant];
    case Backend::tf32x3:
      return std::string("tf32x3 ") + tf32x3::kShapes[choice.variant];
    case Backend::aten:
      return "aten";
    case Backend::cudnn:
      return "cudnn";
    default:
      return "cublas algorithm " + std::to_string(choice.variant);
  }
}

}  // namespace fuseconv::linear
