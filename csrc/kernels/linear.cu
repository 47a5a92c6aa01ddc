// Computes a linear layer of tensors with any strides, with the fastest gemm backend.
#include <optional>

#include "gemm/choices.h"
#include "kernels/dense_rows.h"
#include "kernels/linear.h"
#include "tuning/process.h"

namespace fuseconv::cuda {
namespace {

// Makes the host's GEMM available to backend `aten`.
struct HostProduct {
  CudaHost& host;
  In x, weight;
  std::optional<In> bias;

  static void run(void* context, void* stream, void* z) {
    const HostProduct& self = *static_cast<const HostProduct*>(context);
    Spec spec = contiguous_like(self.x);
    spec.sizes[spec.rank - 1] = self.weight.sizes[0];
    spec = contiguous_like(spec);
    self.host.linear_on(stream, self.x, self.weight, self.bias, {z, spec.dtype, spec.rank, spec.sizes, spec.strides});
  }
};

// The number of 16-bit elements at whose multiples rows must start so that TMA can copy them.
constexpr int64_t kAligned = 8;

// Returns the weight [n, k] with dense rows or dense columns, and sets *transposed if its columns are dense. In memory,
// it is then a [k, n] matrix with dense rows. Dense rows are copied if they do not start at multiples of `multiple`.
DenseRows weight_rows(CudaHost& host, In weight, int64_t multiple, bool* transposed) {
  const int64_t sizes[] = {weight.sizes[1], weight.sizes[0]}, strides[] = {weight.strides[1], weight.strides[0]};
  const In other{weight.data, weight.dtype, 2, sizes, strides};
  DenseRows rows{weight.data, 0};
  *transposed = !is_dense_rows(weight, &rows.stride) && is_dense_rows(other, &rows.stride);
  if (*transposed) {
    return rows;
  }
  rows = dense_rows(host, weight, multiple);
  return rows.stride % multiple == 0 ? rows : copied_rows(host, weight, multiple);
}

}  // namespace

void linear_layer(CudaHost& host, const LinearLayer& layer) {
  const auto& [x, weight, bias, residual, activation, gated, tf32, backend, y, residual_first] = layer;
  linear::Problem p{};
  p.activation = activation;
  p.gated = gated ? 1 : 0;
  p.tf32 = tf32;
  p.n = y.sizes[y.rank - 1];
  p.k = weight.sizes[1];
  p.m = p.n == 0 ? 0 : element_count(y) / p.n;
  if (p.m == 0) {
    return;
  }
  p.element = y.dtype;
  // If x must be copied, its rows are aligned at no cost. It then pays to align those of the weight, which is smaller.
  const DenseRows x_rows = dense_rows(host, x, size_of(y.dtype) == 2 ? kAligned : 1);
  const bool aligns = x_rows.data != x.data && size_of(y.dtype) == 2;
  bool transposed;
  const DenseRows w_rows = weight_rows(host, weight, aligns ? kAligned : 1, &transposed);
  p.x = x_rows.data;
  p.x_stride = x_rows.stride;
  p.weight = w_rows.data;
  p.weight_stride = w_rows.stride;
  p.weight_transposed = transposed;
  if (bias) {
    p.bias = dense_rows(host, *bias).data;
  }
  if (residual) {
    const DenseRows rows = dense_rows(host, *residual);
    p.residual = rows.data;
    p.residual_stride = rows.stride;
    p.residual_first = residual_first && activation != Activation::none;
  }
  p.y = y.data;
  p.y_stride = p.n;
  p.workspace_bytes = linear::kWorkspaceBytes;
  p.stream = host.stream();
  HostProduct product{host, x, weight, bias};
  p.product = &HostProduct::run;
  p.context = &product;
  const linear::Choice choice = linear::Choices::of_process().choose(p, tuning::may_time(), backend);
  if (const size_t bytes = linear::scratch_bytes(p, choice); bytes > 0) {
    p.scratch = host.scratch(bytes);
  }
  if (const size_t bytes = linear::workspace_bytes(p, choice); bytes > 0) {
    p.workspace = host.scratch(bytes);
  }
  linear::run(p, choice);
}

}  // namespace fuseconv::cuda
