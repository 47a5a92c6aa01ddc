#include "gemm/tensor_map.h"

#include <cudaTypedefs.h>

#include <span>
#include <string>

#include "gemm/cuda_check.h"

namespace fuseconv::linear {
namespace {

// Returns a function of the driver. The CUDA runtime looks it up, so that the library need not link to the driver.
template <class Function>
Function of_driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cuda_check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error(std::string("fuseconv: the driver has no ") + name + "; it must support CUDA 12");
  }
  return reinterpret_cast<Function>(function);
}

CUtensorMapDataType type_of(Element element, bool to_tf32) {
  switch (element) {
    case Element::f32:
      return to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Element::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }
}

CUtensorMapSwizzle swizzle_of(int64_t row_bytes) {
  return row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

// Calls a function that encodes a map, and checks its result.
template <class Encode>
void encode(const Encode& call) {
  CUresult status = call();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread has no CUDA context before its first runtime call that needs one. Setting the device creates the
    // context.
    int device;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
    status = call();
  }
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("fuseconv: encoding a tensor map failed with status " + std::to_string(status));
  }
}

// Sizes and boxes are in elements, strides in bytes, innermost dim first.
CUtensorMap tiled_map(Element element, const void* data, std::span<const cuuint64_t> sizes,
                      std::span<const cuuint64_t> strides, std::span<const cuuint32_t> box, bool to_tf32 = false) {
  static const auto encoder = of_driver<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1};
  CUtensorMap map;
  encode([&] {
    return encoder(&map, type_of(element, to_tf32), static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data),
                   sizes.data(), strides.data(), box.data(), kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   swizzle_of(box[0] * size_of(element)), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
  return map;
}

// The last first pixel of a line of windows, counted from the last pixel of the image.
int after(int windows, int stride, int before, int size) { return (windows - 1) * stride - before - (size - 1); }

}  // namespace

CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       int box_columns, bool to_tf32) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride * size_of(element))};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  return tiled_map(element, data, sizes, strides, box, to_tf32);
}

CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t positions, int64_t columns,
                       int64_t stride, int box_rows, int box_columns, bool to_tf32) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(positions),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride / positions * size_of(element)),
                                static_cast<cuuint64_t>(stride * size_of(element))};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), 1, static_cast<cuuint32_t>(box_rows)};
  return tiled_map(element, data, sizes, strides, box, to_tf32);
}

CUtensorMap pixel_map(Element element, const void* data, int64_t images, const Windows& w, int pixels, int channels,
                      bool to_tf32) {
  static const auto encoder = of_driver<PFN_cuTensorMapEncodeIm2col_v12000>("cuTensorMapEncodeIm2col");
  // Images of one row may have groups of channels: then images are in the place of rows, and groups in that of images.
  const bool flat = w.groups > 1;
  const int64_t bytes = size_of(element);
  const auto size = [](int64_t number) { return static_cast<cuuint64_t>(number); };
  const cuuint64_t sizes[] = {size(w.channels), size(w.width), size(flat ? images : w.height),
                              size(flat ? w.groups : images)};
  const cuuint64_t strides[] = {size(w.pixel_stride * bytes), size((flat ? w.image_stride : w.row_stride) * bytes),
                                size((flat ? w.channels : w.image_stride) * bytes)};
  const int first[] = {-w.left, flat ? 0 : -w.top};
  const int last[] = {after(w.y_width, w.stride_x, w.left, w.width),
                      flat ? 0 : after(w.y_height, w.stride_y, w.top, w.height)};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(w.stride_x), static_cast<cuuint32_t>(flat ? 1 : w.stride_y),
                              1};
  CUtensorMap map;
  encode([&] {
    return encoder(&map, type_of(element, to_tf32), 4, const_cast<void*>(data), sizes, strides, first, last,
                   static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(pixels), steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(channels * bytes), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
  return map;
}

CUtensorMap images_map(Element element, const void* data, const int64_t (&sizes)[4], const int (&box)[4]) {
  cuuint64_t lengths[4], strides[3];
  cuuint32_t boxes[4];
  cuuint64_t stride = size_of(element);
  for (int dim = 0; dim < 4; ++dim) {
    lengths[dim] = static_cast<cuuint64_t>(sizes[3 - dim]);
    boxes[dim] = static_cast<cuuint32_t>(box[3 - dim]);
    if (dim < 3) {
      strides[dim] = stride *= lengths[dim];
    }
  }
  return tiled_map(element, data, lengths, strides, boxes);
}

bool can_gather(const Windows& w) {
  constexpr int kMargin = 128, kOffset = 255, kStride = 8;
  const auto fits = [&](int before, int last, int stride, int kernel, int dilation) {
    return before <= kMargin && last >= -kMargin && last < kMargin && stride >= 1 && stride <= kStride &&
           (kernel - 1) * int64_t{dilation} <= kOffset;
  };
  return fits(w.left, after(w.y_width, w.stride_x, w.left, w.width), w.stride_x, w.kernel_width, w.dilation_x) &&
         fits(w.top, after(w.y_height, w.stride_y, w.top, w.height), w.stride_y, w.kernel_height, w.dilation_y);
}

}  // namespace fuseconv::linear
