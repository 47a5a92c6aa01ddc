// Calls ONNX Runtime's own CPU Gemm inside a kernel.
#pragma once

#include <mutex>

#include "bind/ort.h"
#include "core/host.h"

namespace fuseconv::ort_binding {

// Computes y = a b^T + bias for dense matrices in f32 or f64: a is [m, k], b is [n, k], and bias is [n] or null. One
// object serves all calls of a node, from any thread.
class Gemm {
 public:
  explicit Gemm(const OrtKernelInfo* info);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  void run(const OrtKernelContext* context, Dtype dtype, int64_t m, int64_t n, int64_t k, const void* a, const void* b,
           const void* bias, void* y);

 private:
  // Returns the Gemm operator for f32 or f64, with or without a bias. Creates the operator on first use, because most
  // nodes never need it.
  const OrtOp* op(Dtype dtype, bool has_bias);

  OrtKernelInfo* info_;
  OrtMemoryInfo* memory_;
  std::mutex mutex_;
  OrtOp* ops_[2][2] = {};
};

}  // namespace fuseconv::ort_binding
