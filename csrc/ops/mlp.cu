#include "kernels/linear.cuh"
#include "kernels/mlp.h"

namespace fuseconv {
namespace {

// One layer after the other, each by its fastest backend.
void by_layers(CudaHost& host, In x, const Mlp::Layers& layers, Out y) {
  const int64_t rows = element_count(y) / y.sizes[y.rank - 1];
  Spec results[3];
  In input = x;
  for (int i = 0; i < layers.count; ++i) {
    const Mlp::Layer& layer = layers.at[i];
    const int64_t sizes[] = {rows, layer.weight.sizes[0]};
    results[i] = contiguous(y.dtype, 2, sizes);
    void* data = i + 1 == layers.count ? y.data : host.scratch(rows * sizes[1] * size_of(y.dtype));
    const Out output{data, y.dtype, 2, results[i].sizes, results[i].strides};
    linear::Problem problem{};
    problem.activation = layer.activation;
    cuda::run_linear(host, problem, input, layer.weight, layer.bias, std::nullopt, std::nullopt, output);
    input = output;
  }
}

}  // namespace

void Mlp::cuda(CudaHost& host, In x, In weight1, std::optional<In> bias1, In weight2, std::optional<In> bias2,
               std::optional<In> weight3, std::optional<In> bias3, std::string_view act, std::string_view last_act,
               Out y) {
  const Layers all = layers(weight1, bias1, weight2, bias2, weight3, bias3, act, last_act);
  cuda::MlpProblem p{};
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
  if (cuda::mlp_sm90_takes(p)) {
    mlp_sm90(p);
  } else {
    mlp_mma(p);
  }
}

}  // namespace fuseconv
