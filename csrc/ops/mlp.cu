#include "core/cuda.cuh"
#include "kernels/mlp.h"

namespace fuseconv {

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
  if (p.dtype == Dtype::f32 || p.dtype == Dtype::f64) {
    mlp_simt(p);
  } else if (cuda::mlp_sm90_takes(p)) {
    mlp_sm90(p);
  } else {
    mlp_mma(p);
  }
}

}  // namespace fuseconv
