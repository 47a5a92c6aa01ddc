// What linear_kernel does with the accumulators of a tile: adds the bias and the residual, applies the activation, and
// writes the rows of y that TMA cannot write.
#pragma once

#include <type_traits>

#include "arch/pairs.cuh"
#include "arch/sm90.cuh"
#include "gemm/activation.cuh"
#include "gemm/sm90_arguments.h"

namespace fuseconv::linear::sm90 {

using namespace arch::sm90;
using arch::load_pair;
using arch::pack;
using arch::unpack;

struct Piecewise {
  static constexpr float kScale = 1.0f;
  const Pieces& pieces;

  __device__ __forceinline__ float apply(float x) const {
    if (pieces.form == Pieces::two) {
      return x < 0.0f ? x * pieces.scale : x;
    }
    const float line = arch::min(arch::relu(fmaf(x, pieces.scale, pieces.shift)), pieces.high);
    return pieces.form == Pieces::clipped_times_x ? x * line : line;
  }
};

template <class Epilogue>
__device__ __forceinline__ Epilogue epilogue_of(const Arguments& a) {
  if constexpr (std::is_same_v<Epilogue, Piecewise>) {
    return {a.pieces};
  } else {
    return {};
  }
}

// Computes the 16 rows of one warp in a chunk of y from accumulators, and writes them to `shared`, where the 16-byte
// pieces of a row are swizzled as in the tensor map of y. They replace the same rows of the residual, if there is one.
// The ups of a gated tile start kYColumns after its gates.
template <class Element, class Epilogue, class Tile>
__device__ __forceinline__ void finish(const Arguments& a, const float* accumulators, const uint32_t* bias,
                                       uint32_t shared, int lane) {
  constexpr int kRowBytes = Tile::kChunk * 2;
  constexpr bool kMayBeFirst = !std::is_same_v<Epilogue, linear::Epilogue<Activation::none>>;
  const auto epilogue = epilogue_of<Epilogue>(a);
  const int row = lane % 16;
#pragma unroll
  for (int j = 0; j < Tile::kChunk / 8; j += 2) {
    uint32_t packed[4];
    const int piece = (j + lane / 16) ^ (row * kRowBytes / 128 % (kRowBytes / 16));
    const uint32_t place = shared + row * kRowBytes + piece * 16;
    if constexpr (Tile::kResidual) {
      load_matrices(packed, place);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = j + i / 2, half = i % 2;
      float2 b = unpack(bias[column], Element());
      float2 r{};
      if constexpr (Tile::kResidual) {
        r = unpack(packed[i], Element());
        if (kMayBeFirst && a.residual_first) {
          b = {b.x + r.x, b.y + r.y};
          r = {};
        }
      }
      const float* d = accumulators + column * 4 + half * 2;
      float low = epilogue.apply(fmaf(d[0], Epilogue::kScale, b.x * Epilogue::kScale));
      float high = epilogue.apply(fmaf(d[1], Epilogue::kScale, b.y * Epilogue::kScale));
      if constexpr (Tile::kGated) {
        const float2 up = unpack(bias[column + Tile::kYColumns / 8], Element());
        low *= d[Tile::kYColumns / 2] + up.x;
        high *= d[Tile::kYColumns / 2 + 1] + up.y;
      }
      if constexpr (Tile::kResidual) {
        low += r.x;
        high += r.y;
      }
      packed[i] = pack(low, high, Element());
    }
    store_matrices(place, packed[0], packed[1], packed[2], packed[3]);
  }
}

// Returns the biases of two adjacent columns of y, 0 without a bias. The column beyond an odd number of columns has
// none.
template <class Element>
__device__ __forceinline__ uint32_t load_bias(const Element* bias, int column, int columns) {
  uint32_t pair = load_pair(bias + column, bias != nullptr && column + 1 < columns);
  if (bias != nullptr && column + 1 == columns) {
    pair = *reinterpret_cast<const uint16_t*>(bias + column);
  }
  return pair;
}

// Writes the 16 rows of a chunk, which `finish` has left in shared memory, to a y without a tensor map. The threads of
// the warp write adjacent pairs of columns.
template <class Element, class Tile>
__device__ __forceinline__ void store_rows(const Arguments& a, uint32_t shared, int first_column, int end,
                                           int first_row, int lane) {
  constexpr int kRowBytes = Tile::kChunk * 2, kPairs = Tile::kChunk / 2;
  const int pair = lane % kPairs, column = first_column + 2 * pair;
  for (int row = lane / kPairs; row < min(16, a.m - first_row); row += 32 / kPairs) {
    const int piece = pair / 4 ^ (row * kRowBytes / 128 % (kRowBytes / 16));
    const uint32_t values = __float_as_uint(load_shared(shared + row * kRowBytes + piece * 16 + pair % 4 * 4));
    auto* const y = static_cast<uint16_t*>(a.y) + (first_row + row) * a.y_stride + column;
    if (column + 1 < end && reinterpret_cast<uintptr_t>(y) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(y) = values;
    } else if (column < end) {
      y[0] = static_cast<uint16_t>(values);
      if (column + 1 < end) {
        y[1] = static_cast<uint16_t>(values >> 16);
      }
    }
  }
}

}  // namespace fuseconv::linear::sm90
