// The softmax of kernels/softmax.h on CUDA. Rows are held in registers as in kernels/norm.cuh. Rows that do not fit
// take two passes, the first of which computes the maximum and the sum together (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018).
#include "kernels/softmax.h"

#include <cmath>

#include "core/coarse.cuh"
#include "kernels/rows.cuh"

namespace fuseconv::cuda {
namespace {

template <class T>
struct SoftmaxArguments {
  Loop rows;  // operands: y, mask
  int64_t row_count;
  int64_t columns;
  int64_t queries;  // 0 if every row sees all columns; otherwise row r sees the columns up to r % queries
  int64_t mask_stride;
  T* y;
  const T* mask;  // may be null
  bool mask_in_runs;
  bool streaming;
  bool hidden_is_zero;
};

// exp(x - m)
template <class T>
__device__ __forceinline__ Compute<T> exp_of_difference(Compute<T> x, Compute<T> m) {
  if constexpr (sizeof(T) == 2) {
    return arch::exp2_approx((x - m) * 1.4426950408889634f);
  } else {
    return exp(x - m);
  }
}

template <class T>
__device__ __forceinline__ Compute<T> quotient(Compute<T> x, Compute<T> y) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(x, y);
  } else {
    return x / y;
  }
}

// Returns the number of columns that a row sees.
template <class T>
__device__ __forceinline__ int64_t visible_columns(const SoftmaxArguments<T>& a, int64_t row) {
  return a.queries == 0 ? a.columns : min(a.columns, row % a.queries + 1);
}

template <class T, int Threads, int Chunks>
__global__ void __launch_bounds__(kRowBlock<Threads>,
                                  kResidentBlocks<Threads, Chunks * kVectorSize<T> * sizeof(Compute<T>)>)
    softmax_in_registers(const __grid_constant__ SoftmaxArguments<T> a) {
  using A = Compute<T>;
  constexpr int kSize = kVectorSize<T>;
  const A kNone = A(-INFINITY);
  const int lane = threadIdx.x % Threads;
  const int columns = static_cast<int>(a.columns);
  Group<Threads> group;
  for_each_row<Threads>(a.row_count, [&](int64_t index, bool active) {
    int64_t offsets[2];
    row_offsets(a.rows, index, offsets);
    const int visible = static_cast<int>(visible_columns(a, index));
    A s[Chunks][kSize];
    load_row<T, Threads>(a.y + offsets[0], s, lane, visible, kNone);
    if (a.mask != nullptr) {
      if (a.mask_in_runs) {
        add_row<T, Threads>(a.mask + offsets[1], s, lane, columns);
      } else {
#pragma unroll
        for (int chunk = 0; chunk < Chunks; ++chunk) {
          const int column = (chunk * Threads + lane) * kSize;
#pragma unroll
          for (int i = 0; i < kSize; ++i) {
            s[chunk][i] += column < columns ? widen(a.mask[offsets[1] + (column + i) * a.mask_stride]) : A(0);
          }
        }
      }
    }
    if (a.queries != 0) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        const int column = (chunk * Threads + lane) * kSize;
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          s[chunk][i] = column + i < visible ? s[chunk][i] : kNone;
        }
      }
    }
    A largest[1] = {kNone};
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        largest[0] = Larger{}(largest[0], s[chunk][i]);
      }
    }
    group.reduce(Larger{}, largest);
    if (a.hidden_is_zero && largest[0] == kNone) {
      largest[0] = 0;
    }
    A total = 0;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        s[chunk][i] = exp_of_difference<T>(s[chunk][i], largest[0]);
        total += s[chunk][i];
      }
    }
    total = group.sum(total);
    if (total == A(0)) {  // only in a hidden row
      total = 1;
    }
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        s[chunk][i] = quotient<T>(s[chunk][i], total);
      }
    }
    if (active) {
      store_row<T, Threads>(a.y + offsets[0], s, lane, columns, a.streaming);
    }
  });
}

// The state of a softmax over some scores: their maximum, and the sum of exp(score - pivot). The pivot is the maximum,
// or 0 as long as all scores are -inf, so that these scores add 0 to the sum.
template <class A>
struct Online {
  A largest = A(-INFINITY);
  A sum = 0;

  Online() = default;
  // Initializes the state from one score. x - x stands for exp(x - x) - 1: it is 0 for a finite score and otherwise
  // NaN.
  __device__ __forceinline__ explicit Online(A x) : largest(x), sum(x == A(-INFINITY) ? A(0) : A(1) + (x - x)) {}

  __device__ __forceinline__ A pivot() const { return largest == A(-INFINITY) ? A(0) : largest; }
  __device__ __forceinline__ void add(const Online& other) {
    Online both;
    both.largest = Larger{}(largest, other.largest);
    both.sum = scaled(both.pivot()) + other.scaled(both.pivot());
    *this = both;
  }

 private:
  // Returns the sum rescaled to the pivot `to`, which is not smaller than the present pivot, or 0 if all scores are
  // -inf.
  __device__ __forceinline__ A scaled(A to) const { return largest == A(-INFINITY) ? A(0) : sum * exp(largest - to); }
};

inline constexpr int kStridedThreads = 256;

template <class T>
__global__ void __launch_bounds__(kStridedThreads) softmax_strided(const __grid_constant__ SoftmaxArguments<T> a) {
  using A = Compute<T>;
  __shared__ Online<A> partial[kStridedThreads];
  for (int64_t index = blockIdx.x; index < a.row_count; index += gridDim.x) {
    int64_t offsets[2];
    row_offsets(a.rows, index, offsets);
    T* const y = a.y + offsets[0];
    const int64_t visible = visible_columns(a, index);
    const auto load = [&](int64_t column) {
      const A score = widen(y[column]);
      return a.mask == nullptr ? score : score + widen(a.mask[offsets[1] + column * a.mask_stride]);
    };
    Online<A> online;
    for (int64_t column = threadIdx.x; column < visible; column += kStridedThreads) {
      online.add(Online<A>(load(column)));
    }
    __syncthreads();
    partial[threadIdx.x] = online;
    for (int distance = kStridedThreads / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (threadIdx.x < distance) {
        partial[threadIdx.x].add(partial[threadIdx.x + distance]);
      }
    }
    __syncthreads();
    online = partial[0];
    if (a.hidden_is_zero && online.sum == A(0)) {
      online.sum = 1;
    }
    for (int64_t column = threadIdx.x; column < a.columns; column += kStridedThreads) {
      y[column] = narrow<T>(column < visible ? exp(load(column) - online.pivot()) / online.sum : A(0));
    }
  }
}

template <class T>
void run_softmax(cudaStream_t stream, const Softmax& softmax) {
  const In operands[2] = {softmax.y, softmax.mask ? *softmax.mask : In(softmax.y)};
  SoftmaxArguments<T> a{};
  a.rows = row_loop(operands, 2);
  a.row_count = a.rows.count();
  a.columns = softmax.y.sizes[softmax.y.rank - 1];
  a.queries = softmax.is_causal ? softmax.y.sizes[softmax.y.rank - 2] : 0;
  a.mask_stride = operands[1].strides[operands[1].rank - 1];
  a.y = static_cast<T*>(softmax.y.data);
  a.mask = softmax.mask ? static_cast<const T*>(softmax.mask->data) : nullptr;
  a.mask_in_runs = has_aligned_rows<T>(a.rows, 1, a.mask_stride, a.mask);
  a.streaming = is_large(element_count(softmax.y) * sizeof(T));
  a.hidden_is_zero = softmax.hidden_is_zero;
  const auto in_registers = [&]<int Threads, int Chunks>() {
    softmax_in_registers<T, Threads, Chunks>
        <<<row_blocks(a.row_count, kRowsPerBlock<Threads>), kRowBlock<Threads>, 0, stream>>>(a);
  };
  const bool aligned = a.columns % kVectorSize<T> == 0 && has_aligned_rows<T>(a.rows, 0, 1, a.y);
  if (!aligned || !with_group<T>(a.columns, in_registers)) {
    softmax_strided<T><<<row_blocks(a.row_count, 1), kStridedThreads, 0, stream>>>(a);
  }
  check_launch("a softmax kernel");
}

}  // namespace

void softmax(CudaHost& host, const Softmax& softmax) {
  if (element_count(softmax.y) > 0) {
    dispatch(softmax.y.dtype, [&]<class T>(T) { run_softmax<T>(stream_of(host), softmax); });
  }
}

}  // namespace fuseconv::cuda
