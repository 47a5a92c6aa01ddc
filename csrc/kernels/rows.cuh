// Functions for kernels over rows on CUDA: the addresses of rows, groups of threads that hold a row in registers, and
// reductions over a group.
#pragma once

#include <algorithm>

#include "core/layout.h"
#include "kernels/run.cuh"

namespace fuseconv::cuda {

// Computes the offset of row `index` in each operand.
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
// Returns the larger of two values, or NaN if one is NaN.
struct Larger {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

// The group of Threads threads that processes a row: a part of a warp, or the whole block. `reduce` combines the values
// of the group's threads and gives each thread the result. All threads of the block must call it together.
template <int Threads>
class Group {
 public:
  template <class Combine, class A, int N>
  __device__ __forceinline__ void reduce(Combine combine, A (&values)[N]) {
    combine_lanes<(Threads < 32 ? Threads : 32)>(combine, values);
    if constexpr (Threads > 32) {
      // Two buffers alternate, so that one barrier per reduction suffices: there is another barrier before a buffer is
      // written again. Each warp combines the values of all warps across its lanes, because a sequential loop would
      // take as many steps as there are warps.
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
        values[i] = place[i][threadIdx.x % kWarps];
      }
      combine_lanes<kWarps>(combine, values);
    }
  }

  template <class A>
  __device__ __forceinline__ A sum(A value) {
    A values[1] = {value};
    reduce(Add{}, values);
    return values[0];
  }

 private:
  // Combines values over adjacent lanes of a warp.
  template <int Lanes, class Combine, class A, int N>
  static __device__ __forceinline__ void combine_lanes(Combine combine, A (&values)[N]) {
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = combine(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
      }
    }
  }

  int turn_ = 0;
};

// The number of threads in a block if a group of Threads threads holds a row, and the number of rows that such a block
// holds at a time.
template <int Threads>
inline constexpr int kRowBlock = Threads > 32 ? Threads : 128;
template <int Threads>
inline constexpr int kRowsPerBlock = kRowBlock<Threads> / Threads;

// The number of resident blocks per SM for which a thread has registers for `Bytes` bytes and `More` further registers.
// Without this bound, the compiler uses all registers, and too few rows are in flight.
template <int Threads, int Bytes, int More = 48>
inline constexpr int kResidentBlocks = std::max<int>(1, 65536 / ((Bytes / 4 + More) * kRowBlock<Threads>));

// The row of a group in a grid with one group per row. `active` is false for a group without a row, which repeats the
// last row. A kernel with one row per group needs fewer registers than a loop over rows.
struct GroupRow {
  int64_t index;
  bool active;
};
template <int Threads>
__device__ __forceinline__ GroupRow row_of_block(int64_t row_count) {
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t index = block * kRowsPerBlock<Threads> + threadIdx.x / Threads;
  return {min(index, row_count - 1), index < row_count};
}
template <int Threads>
dim3 row_grid(int64_t row_count) {
  const int64_t blocks = (row_count + kRowsPerBlock<Threads> - 1) / kRowsPerBlock<Threads>;
  const int64_t width = std::min(blocks, kMaxBlocks);
  return dim3(static_cast<unsigned>(width), static_cast<unsigned>((blocks + width - 1) / width));
}

// Calls body(row, whether the group has a row) for the rows of a block in grid-stride order. All threads of the block
// iterate equally often; a group without a row repeats the last row.
template <int Threads, class Body>
__device__ __forceinline__ void for_each_row(int64_t row_count, Body body) {
  constexpr int kRows = kRowsPerBlock<Threads>;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < row_count;
       first += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t index = first + threadIdx.x / Threads;
    body(min(index, row_count - 1), index < row_count);
  }
}

// Loads a row into the registers of a group. A thread holds Chunks runs, which are Threads runs apart. Elements past
// the end of the row get the value `outside`.
template <class T, int Threads, int Chunks>
__device__ __forceinline__ void fetch_row(const T* x, Run<T> (&runs)[Chunks], int lane, int columns,
                                          Compute<T> outside) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const int column = (chunk * Threads + lane) * kVectorSize<T>;
    runs[chunk] = constant_run(narrow<T>(outside));
    if (column < columns) {
      runs[chunk] = load_run(x + column);
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

// Calls function.operator()<Threads, Chunks>() for the first shape that holds a row of `columns` elements in Chunks
// runs per thread, and returns true. Returns false if the row is too long for all shapes.
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

// For f16 and bf16, a thread holds up to 32 values, because the work that a thread does once per row is a large part of
// its total work. f32 and f64 values take two and four times as many registers, so a thread usually holds up to 16.
template <class T, class Function>
bool with_group(int64_t columns, Function function) {
  if constexpr (sizeof(T) == 8) {
    return with_group<T>(columns, function, Shape<8, 8>{}, Shape<32, 8>{}, Shape<32, 16>{}, Shape<128, 8>{},
                         Shape<128, 16>{}, Shape<256, 16>{}, Shape<512, 16>{});
  } else if constexpr (sizeof(T) == 4) {
    return with_group<T>(columns, function, Shape<8, 8>{}, Shape<8, 16>{}, Shape<32, 8>{}, Shape<32, 16>{},
                         Shape<32, 24>{}, Shape<64, 16>{}, Shape<128, 16>{}, Shape<256, 16>{}, Shape<512, 16>{},
                         Shape<512, 32>{});
  } else {
    return with_group<T>(columns, function, Shape<8, 8>{}, Shape<8, 16>{}, Shape<32, 8>{}, Shape<32, 16>{},
                         Shape<32, 24>{}, Shape<32, 32>{}, Shape<128, 16>{}, Shape<128, 24>{}, Shape<128, 32>{},
                         Shape<256, 24>{}, Shape<256, 32>{}, Shape<512, 32>{});
  }
}

// Returns the number of blocks for `rows` rows if each block holds `rows_per_block` at a time.
inline int64_t row_blocks(int64_t rows, int64_t rows_per_block) {
  return std::min((rows + rows_per_block - 1) / rows_per_block, kMaxBlocks);
}

// Returns whether every row of an operand starts at an aligned address and is dense.
template <class T>
bool has_aligned_rows(const Loop& rows, int operand, int64_t column_stride, const void* data) {
  bool aligned = column_stride == 1 && is_aligned(data);
  for (int axis = 0; axis < rows.rank; ++axis) {
    aligned &= rows.sizes[axis] == 1 || rows.strides[operand][axis] % kVectorSize<T> == 0;
  }
  return aligned;
}

}  // namespace fuseconv::cuda
