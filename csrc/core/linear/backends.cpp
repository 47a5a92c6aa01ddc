#include "core/linear/backends.h"

#include <algorithm>

#include "core/linear/cublaslt.h"
#include "core/linear/pass.h"
#include "core/linear/sm90.h"

namespace fuseconv::linear {
namespace {

constexpr int kAlgorithmsInTwo = 8;
constexpr int64_t kFewTiles = int64_t{64} * 64 * 48;

// The part of a problem that cuBLAS does for backend `cublas`: the bias too, where it is rounded only once.
Problem product_of(const Problem& p) {
  Problem product = p;
  product.activation = Activation::none;
  product.residual = nullptr;
  if (cublaslt::algorithms(product) == 0) {
    product.bias = nullptr;
  }
  return product;
}

// What is left after a product, with its bias or without.
void finish(const Problem& p, bool has_bias) {
  Problem rest = p;
  rest.bias = has_bias ? nullptr : p.bias;
  if (rest.bias != nullptr || rest.residual != nullptr || rest.activation != Activation::none) {
    finish_in_place(rest);
  }
}

void run_in_two(const Problem& p, int algorithm) {
  const Problem product = product_of(p);
  cublaslt::run(product, algorithm);
  finish(p, product.bias != nullptr);
}

void run_by_host(const Problem& p) {
  p.product(p.context, p.stream);
  finish(p, true);
}

}  // namespace

std::string refuses(Backend backend, const Problem& p) {
  switch (backend) {
    case Backend::cublaslt:
      if (const std::string reason = cublaslt::refuses(p); !reason.empty()) {
        return reason;
      }
      return cublaslt::algorithms(p) == 0 ? "cuBLAS proposes no algorithm" : "";
    case Backend::sm90:
      return sm90::refuses(p);
    case Backend::aten:
      return p.product == nullptr ? "the host has no product of its own" : "";
    default:
      return cublaslt::algorithms(product_of(p)) == 0 ? "cuBLAS proposes no algorithm" : "";
  }
}

bool takes(const Problem& p, Choice choice) {
  if (!refuses(choice.backend, p).empty()) {
    return false;
  }
  switch (choice.backend) {
    case Backend::cublaslt:
      return choice.variant < cublaslt::algorithms(p);
    case Backend::sm90:
    case Backend::aten:
      return true;
    default:
      return choice.variant < cublaslt::algorithms(product_of(p));
  }
}

std::vector<Choice> candidates(const Problem& p, std::optional<Backend> only) {
  std::vector<Choice> fused, called;
  if (refuses(Backend::sm90, p).empty()) {
    for (const sm90::Configuration& configuration : sm90::configurations(p)) {
      fused.push_back({Backend::sm90, sm90::encode(configuration)});
    }
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
  // cuBLAS splits k where there are few tiles; sm90 does not.
  const bool few_tiles = p.m * p.n < kFewTiles && p.k > p.n;
  std::vector<Choice>& first = one_call && few_tiles ? called : fused;
  std::vector<Choice>& second = one_call && few_tiles ? fused : called;
  first.insert(first.end(), second.begin(), second.end());
  if (refuses(Backend::aten, p).empty()) {
    first.push_back({Backend::aten, 0});
  }
  if (only) {
    std::erase_if(first, [&](Choice choice) { return choice.backend != *only; });
  }
  return first;
}

void run(const Problem& p, Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return cublaslt::run(p, choice.variant);
    case Backend::sm90:
      return sm90::run(p, sm90::decode(choice.variant));
    case Backend::aten:
      return run_by_host(p);
    default:
      return run_in_two(p, choice.variant);
  }
}

std::string to_string(Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return "cublaslt algorithm " + std::to_string(choice.variant);
    case Backend::sm90:
      return "sm90 " + sm90::to_string(sm90::decode(choice.variant));
    case Backend::aten:
      return "aten";
    default:
      return "cublas algorithm " + std::to_string(choice.variant);
  }
}

}  // namespace fuseconv::linear
