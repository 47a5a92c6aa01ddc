// Launches the kernels of kernels/mlp_sm90.cuh and mlp_sm90_split.cuh.
#include <algorithm>
#include <limits>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/tensor_map.h"
#include "kernels/mlp_sm90.cuh"
#include "kernels/mlp_sm90_split.cuh"

namespace fuseconv::cuda {
namespace {

// Returns whether TMA can address the rows: they must be dense, at multiples of 16 bytes. The stride of a single row
// does not matter.
bool addressable(const void* data, int64_t rows, int64_t row_stride, int64_t column_stride, int64_t columns) {
  return columns > 0 && is_aligned(data) && (column_stride == 1 || columns == 1) &&
         (rows == 1 || (row_stride > 0 && row_stride % 8 == 0));
}

// Returns the stride for a tensor map. For a single row, any valid stride will do.
int64_t stride_of(int64_t rows, int64_t stride) { return rows == 1 ? 256 : stride; }

// `weight_rows` is the number of rows in a box of a weight.
mlp::Arguments arguments(const MlpProblem& p, int weight_rows) {
  mlp::Arguments a{};
  const MlpOperands& last = p.layer[p.layers - 1];
  a.x = linear::tensor_map(p.dtype, p.x, p.rows, p.layer[0].inputs, stride_of(p.rows, p.x_rows.strides[0][0]), 64, 64);
  if (addressable(p.y, p.rows, last.outputs, 1, last.outputs)) {
    a.y = linear::tensor_map(p.dtype, p.y, p.rows, last.outputs, stride_of(p.rows, last.outputs), 16, 64);
  } else {
    a.y_by_element = p.y;
  }
  for (int i = 0; i < p.layers; ++i) {
    const MlpOperands& layer = p.layer[i];
    a.weight[i] = linear::tensor_map(p.dtype, layer.weight, layer.outputs, layer.inputs,
                                     stride_of(layer.outputs, layer.weight_strides[0]), weight_rows, 64);
    a.layer[i] = {layer.bias, layer.bias_stride, layer.outputs, (layer.inputs + 63) / 64, layer.activation};
    a.steps += a.layer[i].steps;
  }
  a.layers = p.layers;
  a.rows = static_cast<int>(p.rows);
  a.tiles = static_cast<int>((p.rows + 63) / 64);
  return a;
}

void launch(void (*kernel)(mlp::Arguments), const mlp::Arguments& a, int blocks, int cluster, int threads,
            uint32_t shared_bytes, void* stream) {
  allow_shared_memory(kernel, shared_bytes);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = attributes;
  launch.numAttrs = 2;
  check_cuda(cudaLaunchKernelEx(&launch, kernel, a), "launch of mlp_sm90");
}

template <class Element>
void run(const MlpProblem& p) {
  const int sms = linear::device_attribute(cudaDevAttrMultiProcessorCount);
  dispatch_width(p, [&]<int width>(std::integral_constant<int, width>) {
    using mlp::Split;
    using Shape = mlp::Shape<width>;
    if (width == 256 && (p.rows + 63) / 64 <= sms / 2) {
      const auto a = arguments(p, Split::kColumns);
      launch(mlp::split_layers_kernel<Element>, a, 2 * a.tiles, 2, Split::kThreads, Split::kBytes, p.stream);
    } else {
      const auto a = arguments(p, width);
      launch(mlp::layers_kernel<Element, Shape>, a, std::min(sms, a.tiles), 1, Shape::kThreads, Shape::kBytes,
             p.stream);
    }
  });
}

}  // namespace

bool mlp_sm90_takes(const MlpProblem& p) {
  bool takes = linear::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && p.x_rows.rank == 1 &&
               p.rows < std::numeric_limits<int32_t>::max() - 64 * 1024 &&
               addressable(p.x, p.rows, p.x_rows.strides[0][0], p.x_column_stride, p.layer[0].inputs);
  for (int i = 0; i < p.layers; ++i) {
    const MlpOperands& layer = p.layer[i];
    takes &= addressable(layer.weight, layer.outputs, layer.weight_strides[0], layer.weight_strides[1], layer.inputs) &&
             layer.outputs > 0;
  }
  return takes;
}

void mlp_sm90(const MlpProblem& p) {
  if (p.dtype == Dtype::bf16) {
    run<__nv_bfloat16>(p);
  } else {
    run<__half>(p);
  }
}

}  // namespace fuseconv::cuda
