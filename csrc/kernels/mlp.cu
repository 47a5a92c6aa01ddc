#include "kernels/linear.h"
#include "kernels/mlp.h"
#include "kernels/mlp_problem.h"

namespace fuseconv::cuda {
namespace {

// Runs the layers one by one, each on its fastest backend.
void by_layers(CudaHost& host, In x, const MlpLayers& layers, Out y) {
  const int64_t rows = element_count(y) / y.sizes[y.rank - 1];
  Spec results[3];
  In input = x;
  for (int i = 0; i < layers.count; ++i) {
    const MlpLayer& layer = layers.at[i];
    const int64_t sizes[] = {rows, layer.weight.sizes[0]};
    results[i] = contiguous(y.dtype, 2, sizes);
    void* data = i + 1 == layers.count ? y.data : host.scratch(rows * sizes[1] * size_of(y.dtype));
    const Out output{data, y.dtype, 2, results[i].sizes, results[i].strides};
    linear_layer(host, LinearLayer{input, layer.weight, layer.bias, std::nullopt, layer.activation, false, false,
                                   std::nullopt, output});
    input = output;
  }
}

}  // namespace

void mlp(CudaHost& host, const MlpLayers& all, In x, Out y) {
  MlpProblem p{};
  const int64_t width = y.sizes[y.rank - 1];
  p.rows = width == 0 ? 0 : element_count(y) / width;
  if (p.rows == 0) {
    return;
  }
  if (y.dtype == Dtype::f32 || y.dtype == Dtype::f64) {
    return by_layers(host, x, all, y);
  }
  p.dtype = y.dtype;
  p.x = x.data;
  p.x_rows = row_loop(&x, 1);
  p.x_column_stride = x.strides[x.rank - 1];
  p.layers = all.count;
  for (int i = 0; i < all.count; ++i) {
    const auto& [weight, bias, activation] = all.at[i];
    p.layer[i] = {weight.data,
                  {weight.strides[0], weight.strides[1]},
                  bias ? bias->data : nullptr,
                  bias ? bias->strides[0] : 0,
                  static_cast<int>(weight.sizes[1]),
                  static_cast<int>(weight.sizes[0]),
                  activation};
  }
  p.y = y.data;
  p.stream = host.stream();
  if (mlp_sm90_takes(p)) {
    mlp_sm90(p);
  } else {
    mlp_mma(p);
  }
}

}  // namespace fuseconv::cuda
