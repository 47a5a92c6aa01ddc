// ONNX Runtime's own Gemm on the CPU, called from inside a kernel.
#pragma once

#include <mutex>

#include "bind/ort.h"
#include "core/host.h"

namespace fuseconv::ort_binding {

// y = a b^T + bias for matrices, in f32 or f64: a [m, k], b [n, k], bias [n] or null, all dense. One object serves the
// calls of one node, from any threads.
class Gemm {
 public:
  explicit Gemm(const OrtKernelInfo* info);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  void run(const OrtKernelContext* context, Dtype dtype, int64_t m, int64_t n, int64_t k, const void* a, const void* b,
           const void* bias, void* y);

 private:
  // The operator in f32 or f64, with the addend or without. Made on first use: most nodes need none.
  const OrtOp* op(Dtype dtype, bool has_bias);

  OrtKernelInfo* info_;
  OrtMemoryInfo* memory_;
  std::mutex mutex_;
  OrtOp* ops_[2][2] = {};
};

}  // namespace fuseconv::ort_binding
