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
    const float factor = pieces.form == Pieces::clipped_squared ? line : x;
    return pieces.form == Pieces::clipped ? line : factor * line;
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

// An activation in f32 as core/activation.h computes it. linear::Epilogue is only as accurate as f16 and bf16.
template <Activation::Name kActivation>
struct Exact : Constant<kActivation>::functor {
  static constexpr float kScale = 1.0f;
  __device__ __forceinline__ float apply(float x) const { return (*this)(x); }
};

template <class Act>
inline constexpr bool is_identity = false;
template <>
inline constexpr bool is_identity<linear::Epilogue<Activation::none>> = true;
template <>
inline constexpr bool is_identity<Exact<Activation::none>> = true;

// The biases of a thread's pairs of columns in a tile, which are 8 apart, 0 without a bias. Those of 16 bits are loaded
// before the product begins. Those of f32 would take too many registers. The column beyond an odd number of columns has
// no bias.
template <class Element, class Tile>
class Bias {
 public:
  __device__ __forceinline__ Bias(const Arguments& a, int first) {
#pragma unroll
    for (int j = 0; j < Tile::kColumns / 8; ++j) {
      constexpr int kPieces = Tile::kYColumns / 8;
      const int column = first + 8 * (j % kPieces);
      const auto* const bias = static_cast<const Element*>(a.bias) + (a.bias == nullptr || j < kPieces ? 0 : a.n);
      pairs_[j] = load_pair(bias + column, a.bias != nullptr && column + 1 < a.n);
      if (a.bias != nullptr && column + 1 == a.n) {
        pairs_[j] = *reinterpret_cast<const uint16_t*>(bias + column);
      }
    }
  }
  __device__ __forceinline__ float2 operator[](int pair) const { return unpack(pairs_[pair], Element()); }

 private:
  uint32_t pairs_[Tile::kColumns / 8];
};

template <class Tile>
class Bias<float, Tile> {
 public:
  __device__ __forceinline__ Bias(const Arguments& a, int first)
      : data_(static_cast<const float*>(a.bias)), first_(first), columns_(a.bias == nullptr ? 0 : a.n) {}
  __device__ __forceinline__ float2 operator[](int pair) const {
    const int column = first_ + 8 * pair;
    return {column < columns_ ? __ldg(data_ + column) : 0.0f, column + 1 < columns_ ? __ldg(data_ + column + 1) : 0.0f};
  }

 private:
  const float* data_;
  int first_, columns_;
};

// Returns the activation of an accumulator and its bias, with the residual.
template <class Epilogue, class Tile>
__device__ __forceinline__ float finished(const Arguments& a, const Epilogue& epilogue, float d, float bias,
                                          float residual) {
  if (Tile::kResidual && !is_identity<Epilogue> && a.residual_first) {
    bias += residual;
    residual = 0.0f;
  }
  const float y = epilogue.apply(fmaf(d, Epilogue::kScale, bias * Epilogue::kScale));
  return Tile::kResidual ? y + residual : y;
}

// Computes the 16 rows of one warp in a chunk of y from accumulators, and writes them to `shared`, where the 16-byte
// pieces of a row are swizzled as in the tensor map of y. They replace the same rows of the residual, if there is one.
// `first` is the first pair of the bias. The ups of a gated tile start kYColumns after its gates.
template <class Epilogue, class Tile, class Element>
__device__ __forceinline__ void finish(const Arguments& a, const float* accumulators, const Bias<Element, Tile>& bias,
                                       int first, uint32_t shared, int lane) {
  constexpr int kRowBytes = Tile::kChunk * 2;
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
      const float2 b = bias[first + column];
      const float2 r = Tile::kResidual ? unpack(packed[i], Element()) : float2{};
      const float* d = accumulators + column * 4 + half * 2;
      float low = finished<Epilogue, Tile>(a, epilogue, d[0], b.x, r.x);
      float high = finished<Epilogue, Tile>(a, epilogue, d[1], b.y, r.y);
      if constexpr (Tile::kGated) {
        const float2 up = bias[first + column + Tile::kYColumns / 8];
        low *= d[Tile::kYColumns / 2] + up.x;
        high *= d[Tile::kYColumns / 2 + 1] + up.y;
      }
      packed[i] = pack(low, high, Element());
    }
    store_matrices(place, packed[0], packed[1], packed[2], packed[3]);
  }
}

template <class Epilogue, class Tile>
__device__ __forceinline__ void finish(const Arguments& a, const float* accumulators, const Bias<float, Tile>& bias,
                                       int first, uint32_t shared, int lane) {
  static_assert(Tile::kChunk == 32 && !Tile::kGated);
  const auto epilogue = epilogue_of<Epilogue>(a);
#pragma unroll
  for (int j = 0; j < Tile::kChunk / 8; ++j) {
    const float2 b = bias[first + j];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8, piece = (j * 2 + lane % 4 / 2) ^ (row % 8);
      const uint32_t place = shared + row * 128 + piece * 16 + lane % 2 * 8;
      const float2 r = Tile::kResidual ? load_shared_pair(place) : float2{};
      const float* d = accumulators + j * 4 + half * 2;
      store_shared_pair(place, {finished<Epilogue, Tile>(a, epilogue, d[0], b.x, r.x),
                                finished<Epilogue, Tile>(a, epilogue, d[1], b.y, r.y)});
    }
  }
}

// Writes the 16 rows of a chunk, which `finish` has left in shared memory, to a y without a tensor map. The threads of
// the warp write adjacent words of 4 bytes.
template <class Element, class Tile>
__device__ __forceinline__ void store_rows(const Arguments& a, uint32_t shared, int first_column, int end,
                                           int first_row, int lane) {
  constexpr int kPerWord = 4 / sizeof(Element), kWords = Tile::kChunk / kPerWord, kRowBytes = kWords * 4;
  const int word = lane % kWords, column = first_column + kPerWord * word;
  for (int row = lane / kWords; row < min(16, a.m - first_row); row += 32 / kWords) {
    const int piece = word / 4 ^ (row * kRowBytes / 128 % (kRowBytes / 16));
    const float value = load_shared(shared + row * kRowBytes + piece * 16 + word % 4 * 4);
    auto* const y = static_cast<Element*>(a.y) + (first_row + row) * a.y_stride + column;
    if (column + kPerWord <= end && reinterpret_cast<uintptr_t>(y) % 4 == 0) {
      *reinterpret_cast<float*>(y) = value;
    } else if (kPerWord == 2 && column < end) {
      auto* const halves = reinterpret_cast<uint16_t*>(y);
      halves[0] = static_cast<uint16_t>(__float_as_uint(value));
      if (column + 1 < end) {
        halves[1] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
      }
    }
  }
}

}  // namespace fuseconv::linear::sm90
