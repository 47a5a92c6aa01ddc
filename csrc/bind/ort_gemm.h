// ONNX Runtime's own CPU Gemm, called inside a kernel.
#pragma once

#include <mutex>

#include "bind/ort.h"
#include "core/host.h"

namespace fuseconv::ort_binding {

// y = a b^T + bias for dense matrices in f32 or f64: a [m, k], b [n, k], bias [n] or null. One object serves all calls
// of one node, from any thread.
class Gemm {
 public:
  explicit Gemm(const OrtKernelInfo* info);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  void run(const OrtKernelContext* context, Dtype dtype, int64_t m, int64_t n, int64_t k, const void* a, const void* b,
           const void* bias, void* y);

 private:
  // The operator for f32 or f64, with or without the bias. It is created on first use, because most nodes need none.
  const OrtOp* op(Dtype dtype, bool has_bias);

  OrtKernelInfo* info_;
  OrtMemoryInfo* memory_;
  std::mutex mutex_;
  OrtOp* ops_[2][2] = {};
};

}  // namespace fuseconv::ort_binding
