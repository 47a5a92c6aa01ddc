#include <cstdlib>

#include "core/linear/choices.h"
#include "kernels/dense_rows.cuh"
#include "ops/linear_act.h"

namespace fuseconv {
namespace {

// The host's own product, as a backend to choose.
struct HostProduct {
  CudaHost& host;
  In x, weight;
  std::optional<In> bias;
  Out y;

  static void run(void* context, void* stream) {
    const HostProduct& self = *static_cast<const HostProduct*>(context);
    self.host.linear_on(stream, self.x, self.weight, self.bias, self.y);
  }
};

bool may_time() {
  static const bool may = [] {
    const char* timing = std::getenv("FUSECONV_TIMING");
    return timing == nullptr || std::string_view(timing) != "off";
  }();
  return may;
}

// [n, k] with dense rows, or dense columns: then as the matrix [k, n] that it is in memory.
cuda::DenseRows weight_rows(CudaHost& host, In weight, bool* transposed) {
  const int64_t sizes[] = {weight.sizes[1], weight.sizes[0]}, strides[] = {weight.strides[1], weight.strides[0]};
  const In other{weight.data, weight.dtype, 2, sizes, strides};
  cuda::DenseRows rows{weight.data, 0};
  *transposed = !cuda::is_dense_rows(weight, &rows.stride) && cuda::is_dense_rows(other, &rows.stride);
  return *transposed ? rows : cuda::dense_rows(host, weight);
}

}  // namespace

void LinearAct::cuda(CudaHost& host, In x, In weight, std::optional<In> bias, std::optional<In> residual,
                     std::string_view act, std::string_view backend, bool tf32, Out y) {
  linear::Problem p{};
  p.n = weight.sizes[0];
  p.k = weight.sizes[1];
  p.m = p.n == 0 ? 0 : element_count(y) / p.n;
  if (p.m == 0) {
    return;
  }
  p.element = y.dtype;
  p.activation = parse_activation(name, act);
  const cuda::DenseRows x_rows = cuda::dense_rows(host, x);
  bool transposed;
  const cuda::DenseRows w_rows = weight_rows(host, weight, &transposed);
  p.x = x_rows.data;
  p.x_stride = x_rows.stride;
  p.weight = w_rows.data;
  p.weight_stride = w_rows.stride;
  p.weight_transposed = transposed;
  if (bias) {
    p.bias = cuda::dense_rows(host, *bias).data;
  }
  if (residual) {
    const cuda::DenseRows rows = cuda::dense_rows(host, *residual);
    p.residual = rows.data;
    p.residual_stride = rows.stride;
  }
  p.y = y.data;
  p.y_stride = p.n;
  p.tf32 = tf32;
  p.workspace = host.scratch(linear::kWorkspaceBytes);
  p.workspace_bytes = linear::kWorkspaceBytes;
  p.stream = host.stream();
  HostProduct product{host, x, weight, bias, y};
  p.product = &HostProduct::run;
  p.context = &product;
  linear::run(p, linear::Choices::of_process().choose(p, may_time(), linear::parse_backend(name, backend)));
}

}  // namespace fuseconv
