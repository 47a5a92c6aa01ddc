// Creates tensor maps of matrices and of images for TMA on Hopper.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gemm/problem.h"

namespace fuseconv::linear {

// Returns a map of a [rows, columns] matrix with `stride` elements from row to row. Each box contains `box_rows` by
// `box_columns` elements; elements outside the matrix are read as zeros. A row of a box must be 64 or 128 bytes long;
// the swizzle has the same width. If `to_tf32`, TMA rounds f32 elements to the nearest TF32 numbers when it loads them.
// Throws std::runtime_error if the driver rejects the map.
CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       int box_columns, bool to_tf32 = false);

// Returns a map of a [rows, positions, columns] tensor with dense rows of `stride` elements. Each box contains one
// position of `box_rows` rows. The rest is as above.
CUtensorMap tensor_map(Element element, const void* data, int64_t rows, int64_t positions, int64_t columns,
                       int64_t stride, int box_rows, int box_columns, bool to_tf32 = false);

// Returns a map of `images` images from which TMA gathers `pixels` windows at a time (im2col mode): for each window the
// same `channels` channels of one pixel. 64 or 128 bytes of channels, as above. If `has_rows` returns false, the map
// has no dim for rows. If the channels are in groups, the groups take the place of the map's images, and the images are
// one more spatial dim.
CUtensorMap pixel_map(Element element, const void* data, int64_t images, const Windows& windows, int pixels,
                      int channels, bool to_tf32 = false);

// Returns a map of dense images, whose `sizes` are [images, height, width, channels], and so are those of a box, with
// 64 or 128 bytes of channels. Pixels and channels outside the images are read as zeros and not written.
CUtensorMap images_map(Element element, const void* data, const int64_t (&sizes)[4], const int (&box)[4]);

// Returns a map of matrices [rows, columns] in three outer dims. `sizes` and `strides` (in elements) are those of the
// dims, innermost first; columns are adjacent, and have no stride. A box has some rows of one matrix, and 64 or 128
// bytes of each. Elements outside the matrix are read as zeros and not written.
CUtensorMap matrices_map(Element element, const void* data, const int64_t (&sizes)[5], const int64_t (&strides)[4],
                         int box_rows, int box_columns);

// Returns whether images have several rows, or rows of padding.
bool has_rows(const Windows& windows);

// Returns whether TMA can gather these windows: it stores the margins of the images, and the positions in a window, in
// few bits.
bool can_gather(const Windows& windows);

}  // namespace fuseconv::linear
