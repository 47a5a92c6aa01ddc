// Rows of tensors on CUDA: where they are, groups of threads that hold one in registers, and reductions over a group.
#pragma once

#include <algorithm>

#include "core/layout.h"
#include "kernels/run.cuh"

namespace fuseconv::cuda {

// The offset of row `index` in each operand.
template <int Operands>
__device__ __forceinline__ void row_offsets(const Loop& rows, int64_t index, int64_t (&offsets)[Operands]) {
#pragma unroll
  for (int operand = 0; operand < Operands; ++operand) {
    offsets[operand] = 0;
  }
#pragma unroll 1
  for (int axis = rows.rank - 1; axis > 0; --axis) {
    const int64_t rest = index / rows.sizes[axis];
    const int64_t position = index - rest * rows.sizes[axis];
    index = rest;
#pragma unroll
    for (int operand = 0; operand < Operands; ++operand) {
      offsets[operand] += position * rows.strides[operand][axis];
    }
  }
#pragma unroll
  for (int operand = 0; operand < Operands; ++operand) {
    offsets[operand] += index * rows.strides[operand][0];
  }
}

struct Add {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a + b;
  }
};
// The larger, or a NaN if one is.
struct Larger {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

// Combines values over the Threads threads of a row, of a part of a warp or of a block; each of them gets the result.
// All threads of the block call it alike.
template <int Threads>
class Group {
 public:
  template <class Combine, class A, int N>
  __device__ __forceinline__ void reduce(Combine combine, A (&values)[N]) {
    constexpr int kLanes = Threads < 32 ? Threads : 32;
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = combine(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
      }
    }
    if constexpr (Threads > 32) {
      // Two places take turns: one barrier is enough, since the next one comes before a place is written again.
      constexpr int kWarps = Threads / 32;
      __shared__ A partial[2][N][kWarps];
      A(&place)[N][kWarps] = partial[turn_];
      turn_ ^= 1;
      if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          place[i][threadIdx.x / 32] = values[i];
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = place[i][0];
#pragma unroll
        for (int warp = 1; warp < kWarps; ++warp) {
          values[i] = combine(values[i], place[i][warp]);
        }
      }
    }
  }

  template <class A>
  __device__ __forceinline__ A sum(A value) {
    A values[1] = {value};
    reduce(Add{}, values);
    return values[0];
  }

 private:
  int turn_ = 0;
};

// Threads of a block whose rows are held by groups of Threads, and rows that it holds at a time.
template <int Threads>
inline constexpr int kRowBlock = Threads > 128 ? Threads : 128;
template <int Threads>
inline constexpr int kRowsPerBlock = kRowBlock<Threads> / Threads;

// Blocks on a multiprocessor such that a thread has registers for so many bytes and 48 more. Left alone, the compiler
// takes as many as there are, and too few rows are in flight.
template <int Threads, int Bytes>
inline constexpr int kResidentBlocks = std::max<int>(1, 65536 / ((Bytes / 4 + 48) * kRowBlock<Threads>));

// The rows of a block in turn. All its threads go round alike; a group without a row repeats the last one.
template <int Threads, class Body>
__device__ __forceinline__ void for_each_row(int64_t row_count, Body body) {
  constexpr int kRows = kRowsPerBlock<Threads>;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < row_count;
       first += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t index = first + threadIdx.x / Threads;
    body(min(index, row_count - 1), index < row_count);
  }
}

// Rows in the registers of a group: a thread holds Chunks runs, Threads runs apart. Past the end of the row it holds
// `outside`.
template <class T, int Threads, class LoadRun = Load, int Chunks>
__device__ __forceinline__ void fetch_row(const T* x, Run<T> (&runs)[Chunks], int lane, int columns,
                                          Compute<T> outside) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const int column = (chunk * Threads + lane) * kVectorSize<T>;
    runs[chunk] = constant_run(narrow<T>(outside));
    if (column < columns) {
      runs[chunk] = LoadRun{}(x + column);
    }
  }
}

template <class T, int Chunks>
__device__ __forceinline__ void widen_row(const Run<T> (&runs)[Chunks], Compute<T> (&s)[Chunks][kVectorSize<T>]) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    widen_run(runs[chunk], s[chunk]);
  }
}

template <class T, int Threads, int Chunks>
__device__ __forceinline__ void load_row(const T* x, Compute<T> (&s)[Chunks][kVectorSize<T>], int lane, int columns,
                                         Compute<T> outside) {
  Run<T> runs[Chunks];
  fetch_row<T, Threads>(x, runs, lane, columns, outside);
  widen_row(runs, s);
}

template <class T, int Threads, int Chunks>
__device__ __forceinline__ void add_row(const T* x, Compute<T> (&s)[Chunks][kVectorSize<T>], int lane, int columns) {
  Run<T> runs[Chunks];
  fetch_row<T, Threads>(x, runs, lane, columns, Compute<T>(0));
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    Compute<T> values[kVectorSize<T>];
    widen_run(runs[chunk], values);
#pragma unroll
    for (int i = 0; i < kVectorSize<T>; ++i) {
      s[chunk][i] += values[i];
    }
  }
}

template <class T, int Threads, int Chunks>
__device__ __forceinline__ void store_row(T* y, const Compute<T> (&s)[Chunks][kVectorSize<T>], int lane, int columns,
                                          bool streaming) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const int column = (chunk * Threads + lane) * kVectorSize<T>;
    if (column < columns) {
      store_run(y + column, narrow_run<T>(s[chunk]), streaming);
    }
  }
}

template <int Threads, int PerThread>
struct Shape {};

// Calls function.operator()<Threads, Chunks>() for the first of the shapes that holds a row of `columns` elements, in
// Chunks runs a thread, and returns true; or returns false if the row is too long for all.
template <class T, int... Threads, int... PerThread, class Function>
bool with_group(int64_t columns, Function function, Shape<Threads, PerThread>...) {
  const auto fits = [&]<int Size, int Values>() {
    if (columns > Size * Values) {
      return false;
    }
    function.template operator()<Size, Values / kVectorSize<T>>();
    return true;
  };
  return (fits.template operator()<Threads, PerThread>() || ...);
}

// Up to 32 values a thread: what it does once a row is a good part of its work. Up to 16 of f64, which take as many
// registers.
template <class T, class Function>
bool with_group(int64_t columns, Function function) {
  if constexpr (sizeof(T) == 8) {
    return with_group<T>(columns, function, Shape<8, 8>{}, Shape<32, 8>{}, Shape<32, 16>{}, Shape<128, 8>{},
                         Shape<128, 16>{}, Shape<256, 16>{}, Shape<512, 16>{});
  } else {
    return with_group<T>(columns, function, Shape<8, 8>{}, Shape<8, 16>{}, Shape<32, 8>{}, Shape<32, 16>{},
                         Shape<32, 24>{}, Shape<32, 32>{}, Shape<128, 16>{}, Shape<128, 24>{}, Shape<128, 32>{},
                         Shape<256, 24>{}, Shape<256, 32>{}, Shape<512, 32>{});
  }
}

// Blocks for `rows` rows of which each holds `rows_per_block` at a time.
inline int64_t row_blocks(int64_t rows, int64_t rows_per_block) {
  return std::min((rows + rows_per_block - 1) / rows_per_block, kMaxBlocks);
}

// Whether every row of an operand starts at an aligned address and is dense.
template <class T>
bool has_aligned_rows(const Loop& rows, int operand, int64_t column_stride, const void* data) {
  bool aligned = column_stride == 1 && is_aligned(data);
  for (int axis = 0; axis < rows.rank; ++axis) {
    aligned &= rows.sizes[axis] == 1 || rows.strides[operand][axis] % kVectorSize<T> == 0;
  }
  return aligned;
}

// Whether results of so many bytes pass through the caches only.
inline bool exceeds_cache(int64_t bytes) {
  int device, cache;
  check(cudaGetDevice(&device) == cudaSuccess &&
            cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device) == cudaSuccess,
        "fuseconv: the size of the device's cache cannot be read");
  return bytes > cache;
}

}  // namespace fuseconv::cuda
