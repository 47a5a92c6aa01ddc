// Attention by the host's GEMM and the softmax of kernels/softmax.h, for the CPU and CUDA. f16 and bf16 are computed in
// f32, because scores may exceed the range of f16.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "core/activation.h"
#include "core/layout.h"
#include "core/scratch.h"
#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/pointwise.h"
#include "kernels/softmax.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

inline void convert_dense(CpuHost& host, In x, Out y) { Convert::cpu<isa::FUSECONV_ISA>(host, x, 1.0, y); }
inline void convert_dense(CudaHost& host, In x, Out y) { cuda::convert(host, x, y); }

template <class Host>
class AttentionByProducts {
 public:
  AttentionByProducts(Host& host, const AttentionProblem& problem) : host_(host), p_(problem), rank_(problem.y.rank) {}

  void run() {
    const Dtype dtype = size_of(p_.y.dtype) < 4 ? Dtype::f32 : p_.y.dtype;
    Spec q, k, v, mask, scores = spec(dtype, p_.y), y = spec(dtype, p_.y);
    scores.sizes[rank_ - 1] = p_.k.sizes[rank_ - 2];
    const Out weights = scratch(scores);
    host_.batched_product(dense(p_.q, dtype, q), dense(p_.k, dtype, k), p_.scale, weights);
    const std::optional<In> added = p_.mask ? std::optional<In>(dense(*p_.mask, dtype, mask)) : std::nullopt;
    softmax(host_, Softmax{weights, added, true, p_.is_causal});
    const Out result = scratch(y);
    host_.batched_product(weights, dense(transposed(p_.v), dtype, v), 1.0, result);
    Spec narrow;
    pointwise(host_, Identity{}, p_.y, dense(result, p_.y.dtype, narrow));
  }

 private:
  // Returns the Spec of a contiguous tensor whose sizes may still be changed.
  Spec spec(Dtype dtype, In like) const {
    Spec result{dtype, like.rank, {}, {}};
    std::copy_n(like.sizes, like.rank, result.sizes);
    return result;
  }

  Out scratch(Spec& spec) {
    spec = contiguous_like(spec);
    return in_scratch(host_, spec);
  }

  // Returns the matrices v^T, [..., E, T].
  In transposed(In v) {
    turned_ = spec(v.dtype, v);
    std::copy_n(v.strides, rank_, turned_.strides);
    std::swap(turned_.sizes[rank_ - 2], turned_.sizes[rank_ - 1]);
    std::swap(turned_.strides[rank_ - 2], turned_.strides[rank_ - 1]);
    return {v.data, v.dtype, rank_, turned_.sizes, turned_.strides};
  }

  // Returns a tensor in contiguous memory and in a dtype. `own` keeps its sizes.
  In dense(In x, Dtype dtype, Spec& own) {
    if (!is_contiguous(x)) {
      own = spec(x.dtype, x);
      const Out copy = scratch(own);
      pointwise(host_, Identity{}, copy, x);
      x = copy;
    }
    if (x.dtype == dtype) {
      return x;
    }
    own = spec(dtype, x);
    const Out converted = scratch(own);
    convert_dense(host_, x, converted);
    return converted;
  }

  Host& host_;
  const AttentionProblem& p_;
  const int32_t rank_;
  Spec turned_;
};

template <class Host>
void attention_by_products(Host& host, const AttentionProblem& problem) {
  AttentionByProducts<Host>(host, problem).run();
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
