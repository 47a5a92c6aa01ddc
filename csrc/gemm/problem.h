// Describes one linear layer for the backends: y = act(x w^T + bias) + residual, or y = act(x w^T + bias + residual) if
// residual_first, or, if gated, y = act(x wg^T + bg) (x wu^T + bu), where g and u denote the gate half and the up half
// of weight and bias. A convolution is a linear layer whose x is an implicit matrix. The description contains only
// plain data, so that it does not depend on a framework.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/activation.h"
#include "core/tensor_view.h"

namespace fuseconv::linear {

using Element = Dtype;

// The implicit matrix x [m, k] of a 2-D convolution (im2col), or of a 1-D convolution of images with one row. Row
// (image, p, q) is the window of the image from which output pixel (p, q) is computed: its columns are the kernel's
// positions, and for each position the channels of one pixel. Pixels outside the image are zeros. The channels of a
// pixel are adjacent; strides are in elements.
struct Windows {
  int32_t height, width, channels;      // the size of an image; the channels of one group
  int32_t kernel_height, kernel_width;  // 0 if x is an ordinary matrix
  int32_t y_height, y_width;            // the size of the result
  int32_t stride_y, stride_x;           // the steps between windows
  int32_t top, left;                    // the padding before the image
  int32_t dilation_y, dilation_x;
  int32_t groups;  // each computes n / groups columns of y; its channels are adjacent to those of the next group
  int64_t image_stride, row_stride, pixel_stride;

  int32_t positions() const { return kernel_height * kernel_width; }
};

// Sizes and strides are in elements. Rows are contiguous; the stride between rows is arbitrary.
struct Problem {
  Element element;
  Activation activation;
  int64_t m, n, k;
  const void* x;         // [m, k]
  const void* weight;    // [n, k]; gated: [2n, k], the rows of wg, then the rows of wu
  const void* bias;      // [n], gated: [2n]; or null
  const void* residual;  // [m, n], or null
  void* y;               // [m, n]; does not overlap any operand
  int64_t x_stride, weight_stride, residual_stride, y_stride;
  int32_t tf32;  // f32 only: whether to multiply in TF32
  // relu only: whether cublaslt may be a candidate, because the caller tests whether each algorithm propagates NaN
  // before it uses the algorithm
  int32_t relu_checked;
  int32_t gated;           // whether the layer is gated; then there is no residual
  void* workspace;         // device memory, 256-byte aligned, workspace_bytes(problem, choice) bytes; or null
  size_t workspace_bytes;  // how many bytes a choice may need
  void* scratch;           // device memory, 256-byte aligned, scratch_bytes(problem, choice) bytes; or null
  void* stream;            // cudaStream_t
  // Computes z = x w^T + bias, with dense rows, on a stream with the host framework's GEMM, or all of a convolution
  // with cuDNN. Backends `aten` and `cudnn` require this function; null if there is none.
  void (*product)(void* context, void* stream, void* z);
  void* context;
  int32_t weight_transposed;  // whether weight is [k, n] in memory, with weight_stride between its rows
  // The number of products x w^T in a batch, and the strides between their operands. The results are adjacent in y. 0
  // means one product without a batch. Only backend `cublaslt` supports a batch, and only without bias and residual.
  int32_t batch;
  int64_t x_batch_stride, weight_batch_stride;
  int32_t residual_first;   // whether the residual is added before the activation
  Windows windows;          // of a convolution; x is its first image
  int64_t product_version;  // of a convolution: the version of cuDNN, on which `product` depends

  bool is_convolution() const { return windows.kernel_height > 0; }
};

inline constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// Returns the largest power of two that divides an address, but at most 16, the alignment in bytes that vector loads
// and TMA require. Larger alignments are not distinguished. Otherwise, layers of a compiled model that differ only in
// the addresses of their constants, which are aligned to 64 bytes, would get different choices.
inline int alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 16;
  return static_cast<int>(address & (~address + 1));
}

}  // namespace fuseconv::linear
