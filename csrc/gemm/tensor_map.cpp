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
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
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

bool has_rows(const Windows& w) { return w.height != 1 || w.y_height != 1 || w.kernel_height != 1 || w.top != 0; }

CUtensorMap pixel_map(Element element, const void* data, int64_t images, const Windows& w, int pixels, int channels,
                      bool to_tf32) {
  static const auto encoder = of_driver<PFN_cuTensorMapEncodeIm2col_v12000>("cuTensorMapEncodeIm2col");
  const int64_t bytes = size_of(element);
  cuuint64_t sizes[5], strides[5];
  cuuint32_t steps[5], dims = 0;
  int first[5], last[5];
  const auto add = [&](int64_t size, int64_t stride, int step, int from, int to) {
    sizes[dims] = static_cast<cuuint64_t>(size), strides[dims] = static_cast<cuuint64_t>(stride * bytes);
    steps[dims] = static_cast<cuuint32_t>(step), first[dims] = from, last[dims] = to;
    ++dims;
  };
  add(w.channels, 1, 1, 0, 0);
  add(w.width, w.pixel_stride, w.stride_x, -w.left, after(w.y_width, w.stride_x, w.left, w.width));
  if (has_rows(w)) {
    add(w.height, w.row_stride, w.stride_y, -w.top, after(w.y_height, w.stride_y, w.top, w.height));
  }
  add(images, w.image_stride, 1, 0, 0);
  if (w.groups > 1) {
    add(w.groups, w.channels, 1, 0, 0);
  }
  CUtensorMap map;
  encode([&] {
    return encoder(&map, type_of(element, to_tf32), dims, const_cast<void*>(data), sizes, strides + 1, first + 1,
                   last + 1, static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(pixels), steps,
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

CUtensorMap matrices_map(Element element, const void* data, const int64_t (&sizes)[5], const int64_t (&strides)[4],
                         int box_rows, int box_columns) {
  cuuint64_t lengths[5], bytes[4];
  for (int dim = 0; dim < 5; ++dim) {
    lengths[dim] = static_cast<cuuint64_t>(sizes[dim]);
    if (dim > 0) {
      bytes[dim - 1] = static_cast<cuuint64_t>(strides[dim - 1] * size_of(element));
    }
  }
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), 1, 1, 1};
  return tiled_map(element, data, lengths, bytes, box);
}

bool can_gather(const Windows& w) {
  // Every spatial dim of the map leaves fewer bits for each of them. With groups, the images are one of them.
  const int spatial = 1 + (has_rows(w) ? 1 : 0) + (w.groups > 1 ? 1 : 0);
  const int margin = spatial == 1 ? 32768 : spatial == 2 ? 128 : 16;
  const int offset = spatial == 1 ? 65535 : spatial == 2 ? 255 : 31;
  constexpr int kStride = 8;
  const auto fits = [&](int before, int last, int stride, int kernel, int dilation) {
    return before <= margin && last >= -margin && last < margin && stride >= 1 && stride <= kStride &&
           (kernel - 1) * int64_t{dilation} <= offset;
  };
  return fits(w.left, after(w.y_width, w.stride_x, w.left, w.width), w.stride_x, w.kernel_width, w.dilation_x) &&
         fits(w.top, after(w.y_height, w.stride_y, w.top, w.height), w.stride_y, w.kernel_height, w.dilation_y);
}

}  // namespace fuseconv::linear
