#include "kernels/mlp.h"

#include <algorithm>
#include <memory>

#include "kernels/pointwise.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

// The number of rows in a block, which goes through all layers before the next block. It is large enough for the GEMM
// to reach full speed, and small enough that two blocks of intermediates of the largest width stay in L2.
constexpr int64_t kBlockRows = 1024;

void layer(CpuHost& host, const MlpLayer& layer, In x, Out y) {
  host.linear(x, layer.weight, layer.bias, y);
  if (layer.activation != Activation::none) {
    dispatch(layer.activation, [&](auto act) { pointwise(host, act, y, In(y)); });
  }
}

}  // namespace

void mlp(CpuHost& host, const MlpLayers& all, In x, Out y) {
  const int64_t width = y.sizes[y.rank - 1], inputs = x.sizes[x.rank - 1];
  const int64_t rows = width == 0 ? 0 : element_count(y) / width;
  if (rows == 0) {
    return;
  }
  // Rows without a common stride are processed as one block, because the host's GEMM makes them dense.
  const Loop loop = row_loop(&x, 1);
  const int64_t block = loop.rank == 1 ? std::min(kBlockRows, rows) : rows;
  const int64_t element = y.dtype == Dtype::f64 ? 8 : y.dtype == Dtype::f32 ? 4 : 2;
  const auto at = [&](const void* data, int64_t offset) { return static_cast<const char*>(data) + offset * element; };
  const size_t bytes = static_cast<size_t>(block * kMaxMlpWidth * element);
  const std::unique_ptr<char[]> memory(new char[2 * bytes]);
  for (int64_t row = 0; row < rows; row += block) {
    const int64_t count = std::min(block, rows - row);
    const int64_t x_sizes[] = {count, inputs}, x_strides[] = {loop.strides[0][0], x.strides[x.rank - 1]};
    In input = loop.rank == 1 ? In{at(x.data, row * x_strides[0]), x.dtype, 2, x_sizes, x_strides} : x;
    Spec result;
    for (int i = 0; i < all.count; ++i) {
      const int64_t sizes[] = {count, all.at[i].weight.sizes[0]};
      const Spec before = result;
      if (i > 0) {
        input.sizes = before.sizes;
        input.strides = before.strides;
      }
      result = contiguous(y.dtype, 2, sizes);
      void* data = i + 1 == all.count ? const_cast<char*>(at(y.data, row * width)) : memory.get() + i % 2 * bytes;
      const Out output{data, y.dtype, 2, result.sizes, result.strides};
      layer(host, all.at[i], input, output);
      input = {data, y.dtype, 2, nullptr, nullptr};
    }
  }
}

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
