#include "gemm/tensor_map.h"

#include <cudaTypedefs.h>

#include "gemm/cuda_check.h"

namespace fuseconv::linear {
namespace {

// Returns the driver's function cuTensorMapEncodeTiled. The CUDA runtime looks it up, so that the library need not link
// to the driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess) {
      throw std::runtime_error("fuseconv: the driver has no cuTensorMapEncodeTiled; it must support CUDA 12");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

CUtensorMapDataType type_of(Element element) {
  switch (element) {
    case Element::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Element::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }
}

}  // namespace

CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       int box_columns) {
  CUtensorMap map;
  const int64_t bytes = size_of(element);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride * bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const auto encode = [&] {
    return encoder()(&map, type_of(element), 2, const_cast<void*>(data), sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE,
                     box_columns * bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = encode();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread has no CUDA context before its first runtime call that needs one. Setting the device creates the
    // context.
    int device;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
    status = encode();
  }
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("fuseconv: cuTensorMapEncodeTiled failed with status " + std::to_string(status));
  }
  return map;
}

}  // namespace fuseconv::linear
