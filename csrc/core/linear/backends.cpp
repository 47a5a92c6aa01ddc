#include "core/linear/backends.h"

#include <algorithm>

#include "core/linear/cublaslt.h"
#include "core/linear/pass.h"
#include "core/linear/sm90.h"

namespace fuseconv::linear {
namespace {

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

void run_in_two(const Problem& p, int algorithm) {
  const Problem product = product_of(p);
  cublaslt::run(product, algorithm);
  Problem rest = p;
  rest.bias = product.bias != nullptr ? nullptr : p.bias;
  if (rest.bias != nullptr || rest.residual != nullptr || rest.activation != Activation::none) {
    finish_in_place(rest);
  }
}

std::vector<sm90::Configuration> sm90_configurations(const Problem& p) {
  std::vector<sm90::Configuration> found;
  for (const int shape : {0, 2, 3}) {
    for (const auto& [cluster_m, cluster_n] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
      found.push_back({shape, cluster_m, cluster_n, 8, true});
    }
  }
  (void)p;
  return found;
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
    default:
      if (p.residual == p.y && p.residual != nullptr) {
        return "y is the residual's memory";
      }
      return cublaslt::algorithms(product_of(p)) == 0 ? "cuBLAS proposes no algorithm" : "";
  }
}

std::vector<Choice> candidates(const Problem& p) {
  std::vector<Choice> choices;
  const auto add_algorithms = [&](Backend backend, int count) {
    for (int i = 0; i < count; ++i) {
      choices.push_back({backend, i});
    }
  };
  if (refuses(Backend::cublaslt, p).empty()) {
    add_algorithms(Backend::cublaslt, cublaslt::algorithms(p));
  } else if (refuses(Backend::cublas, p).empty()) {
    add_algorithms(Backend::cublas, std::min(cublaslt::algorithms(product_of(p)), 8));
  }
  if (refuses(Backend::sm90, p).empty()) {
    for (const sm90::Configuration& configuration : sm90_configurations(p)) {
      choices.push_back({Backend::sm90, sm90::encode(configuration)});
    }
  }
  return choices;
}

void run(const Problem& p, Choice choice) {
  switch (choice.backend) {
    case Backend::cublaslt:
      return cublaslt::run(p, choice.variant);
    case Backend::sm90:
      return sm90::run(p, sm90::decode(choice.variant));
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
    default:
      return "cublas algorithm " + std::to_string(choice.variant);
  }
}

}  // namespace fuseconv::linear
