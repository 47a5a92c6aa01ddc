// Computes the moments of groups on CUDA, in one pass over x in any layout, in memory order.
//
// A thread adds the distances of the few elements in its registers to a center. It then shifts these sums to the origin
// of the row, the row's first element, in f64. The origin is at most sqrt(elements) standard deviations from the mean,
// so f64 is precise enough for the cancellation at the end, and no separate pass over x is needed to compute the mean.
//
// If there are too few rows to occupy all SMs, each row is cut into parts, whose sums are stored in a scratch buffer
// and added by a second kernel. The order of the additions is the same on every run.
#pragma once

#include "kernels/group_norm.h"
#include "kernels/index.cuh"
#include "kernels/moments.cuh"

namespace fuseconv::cuda {

inline constexpr int kGroupUnroll = 4;  // the number of runs that a thread holds
inline constexpr int kGroupThreads = 256;
inline constexpr int64_t kGroupBlocks = 8;  // the minimum number of blocks per SM

// The arguments of the last step, which computes the moments of each channel of each image from the sums of a row. The
// argument of the activation is then (x - center) * factor + offset for each element x.
template <class T>
struct ChannelArguments {
  int64_t groups;
  int64_t channels;  // the number of channels in a group
  int64_t weight_stride;
  int64_t bias_stride;
  const T* weight;  // weight and bias may be null
  const T* bias;
  RowNorm<T> norm;
  Moments<Compute<T>>* result;  // [N, C]
};

// A row is one group of one image.
template <class T, class Index>
struct GroupArguments {
  IndexSpace<Index, 2> kept;   // operands: the row number, x
  IndexSpace<Index, 1> taken;  // operand: x, in runs
  int64_t rows;
  int64_t elements;  // the number of elements in a row
  Index runs;        // the number of runs in a row
  Index part;        // the number of runs in a part
  int64_t parts;
  const T* x;
  double* sums;  // [parts, rows, 2], or null if there is one part
  ChannelArguments<T> channels;
};

// Adds x - origin and its square over every Threads-th run of [begin, end).
template <int Size, int Threads, class T, class Index>
__device__ __forceinline__ void add_distances(const GroupArguments<T, Index>& a, const T* row, Index begin, Index end,
                                              double origin, double (&sums)[2]) {
  using A = Compute<T>;
  for (; begin < end; begin += kGroupUnroll * Threads) {
    // All addresses are computed first, so that the loads are issued together.
    const T* places[kGroupUnroll];
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      int64_t offset[1] = {};
      a.taken.locate(min(static_cast<Index>(begin + u * Threads), static_cast<Index>(end - 1)), offset);
      places[u] = row + offset[0];
    }
    Run<T, Size> runs[kGroupUnroll] = {};
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      if (begin + u * Threads < end) {
        runs[u] = load_run<Size>(places[u]);
      }
    }
    const int count = min(static_cast<int64_t>(kGroupUnroll), static_cast<int64_t>((end - begin - 1) / Threads + 1));
    // Values are scaled by a power of two before they are added, because their sum could overflow.
    constexpr A kPart = A(1) / 64;
    static_assert(kGroupUnroll * Size <= 64);
    // For f16 and bf16, any element is accurate enough as a center.
    A values[Size];
    widen_run(runs[0], values);
    A center = values[0];
    if constexpr (sizeof(T) != 2) {
      A total = 0;
#pragma unroll
      for (int u = 0; u < kGroupUnroll; ++u) {
        widen_run(runs[u], values);
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          total += values[i] * kPart;
        }
      }
      center = total * (64 / static_cast<A>(count * Size));
    }
    A distances = 0, squares = 0;
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      const A subtrahend = u < count ? center : A(0);
      widen_run(runs[u], values);
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        const A distance = values[i] - subtrahend;
        distances += distance * kPart;
        squares += distance * distance;
      }
    }
    const double n = count * Size, shift = center - origin, sum = distances * 64.0;
    sums[0] += sum + n * shift;
    sums[1] += squares + shift * (2.0 * sum + n * shift);
  }
}

// Converts the sums of a row to the moments of its channels. The threads of a group share the work.
template <int Threads, class T>
__device__ __forceinline__ void write_channels(const ChannelArguments<T>& a, int64_t row, int64_t elements,
                                               double origin, const double (&sums)[2], int lane) {
  using A = Compute<T>;
  const A center = a.norm.center(static_cast<Total<T>>((sums[0] + elements * origin) * a.norm.share));
  const double shift = origin - center, n = static_cast<double>(elements);
  const Total<T> distances[2] = {static_cast<Total<T>>((sums[0] + n * shift) * a.norm.share),
                                 static_cast<Total<T>>(sums[1] + shift * (2.0 * sums[0] + n * shift))};
  // Weight and bias are included before the only rounding.
  const auto m = a.norm.template moments<Total<T>>(center, distances);
  const int64_t first = row % a.groups * a.channels;
  for (int64_t channel = lane; channel < a.channels; channel += Threads) {
    const Total<T> weight = a.weight == nullptr ? A(1) : widen(a.weight[(first + channel) * a.weight_stride]);
    // -0 takes the place of a missing bias, because adding -0 does not change the sign of a zero.
    const Total<T> bias = a.bias == nullptr ? A(-0.0) : widen(a.bias[(first + channel) * a.bias_stride]);
    a.result[row * a.channels + channel] = {center, static_cast<A>(m.factor * weight),
                                            static_cast<A>(m.offset * weight + bias)};
  }
}

// blockIdx.y is the index of the part.
template <int Size, int Threads, class T, class Index>
__global__ void __launch_bounds__(kRowBlock<Threads>) sum_groups(const __grid_constant__ GroupArguments<T, Index> a) {
  const int lane = threadIdx.x % Threads;
  Group<Threads> group;
  for_each_row<Threads>(a.rows, [&](int64_t index, bool active) {
    int64_t offsets[2] = {};
    a.kept.locate(static_cast<Index>(index), offsets);
    const T* row = a.x + offsets[1];
    const double origin = widen(*row);
    const Index begin = blockIdx.y * a.part;
    double sums[2] = {};
    add_distances<Size, Threads>(a, row, static_cast<Index>(begin + lane), min(begin + a.part, a.runs), origin, sums);
    group.reduce(Add{}, sums);
    if (!active) {
      return;
    }
    if (a.sums == nullptr) {
      write_channels<Threads>(a.channels, offsets[0], a.elements, origin, sums, lane);
    } else if (lane == 0) {
      double* const part = a.sums + (blockIdx.y * a.rows + index) * 2;
      part[0] = sums[0];
      part[1] = sums[1];
    }
  });
}

// Adds the sums of the parts, which sum_groups stored, and converts them to moments as sum_groups does if there is only
// one part.
template <int Threads, class T, class Index>
__global__ void __launch_bounds__(kRowBlock<Threads>) add_parts(const __grid_constant__ GroupArguments<T, Index> a) {
  const int lane = threadIdx.x % Threads;
  Group<Threads> group;
  for_each_row<Threads>(a.rows, [&](int64_t index, bool active) {
    int64_t offsets[2] = {};
    a.kept.locate(static_cast<Index>(index), offsets);
    double sums[2] = {};
    for (int64_t part = lane; part < a.parts; part += Threads) {
      sums[0] += a.sums[(part * a.rows + index) * 2];
      sums[1] += a.sums[(part * a.rows + index) * 2 + 1];
    }
    group.reduce(Add{}, sums);
    if (active) {
      write_channels<Threads>(a.channels, offsets[0], a.elements, static_cast<double>(widen(a.x[offsets[1]])), sums,
                              lane);
    }
  });
}

// The rows of a group norm, and what the last step needs.
template <class T>
struct GroupRows {
  ReductionLoops loops;
  const T* x;
  ChannelArguments<T> channels{};

  GroupRows(CudaHost& host, const GroupNorm& norm) : loops(of(norm)), x(static_cast<const T*>(norm.x.data)) {
    const int64_t images = norm.x.sizes[0], all = norm.x.sizes[1];
    channels.groups = norm.groups;
    channels.channels = all / norm.groups;
    channels.weight_stride = norm.weight ? norm.weight->strides[0] : 0;
    channels.bias_stride = norm.bias ? norm.bias->strides[0] : 0;
    channels.weight = norm.weight ? static_cast<const T*>(norm.weight->data) : nullptr;
    channels.bias = norm.bias ? static_cast<const T*>(norm.bias->data) : nullptr;
    channels.norm = RowNorm<T>(loops.taken.count(), norm.eps, true);
    channels.result = static_cast<Moments<Compute<T>>*>(host.scratch(images * all * sizeof(Moments<Compute<T>>)));
  }

  template <class Index>
  GroupArguments<T, Index> arguments() const {
    GroupArguments<T, Index> a{};
    a.kept = IndexSpace<Index, 2>(loops.kept, 1);
    a.rows = loops.kept.count();
    a.elements = loops.taken.count();
    a.x = x;
    a.channels = channels;
    return a;
  }

  // Computes the moments from sums [parts, rows, 2].
  template <class Index = int64_t>
  void finish(CudaHost& host, double* sums, int64_t parts) const {
    GroupArguments<T, Index> a = arguments<Index>();
    a.parts = parts;
    a.sums = sums;
    const auto launch = [&]<int Threads>() {
      add_parts<Threads><<<row_blocks(a.rows, kRowsPerBlock<Threads>), kRowBlock<Threads>, 0, stream_of(host)>>>(a);
    };
    if (parts > 4 * 32) {
      launch.template operator()<kGroupThreads>();
    } else {
      launch.template operator()<32>();
    }
    check_launch("a kernel of a group norm");
  }

 private:
  static ReductionLoops of(const GroupNorm& norm) {
    const Spec view = grouped(norm.x, norm.groups);
    int64_t dims[kMaxRank];
    for (int axis = 2; axis < view.rank; ++axis) {
      dims[axis - 2] = axis;
    }
    return reduction_loops(view, {dims, static_cast<size_t>(view.rank - 2)});
  }
};

template <int Size, class Index, class T>
void launch_group_moments(CudaHost& host, const GroupRows<T>& rows) {
  const cudaStream_t stream = stream_of(host);
  GroupArguments<T, Index> a = rows.template arguments<Index>();
  a.taken = IndexSpace<Index, 1>(rows.loops.taken, Size);
  const int64_t runs = a.elements / Size, sms = sm_count();
  a.runs = static_cast<Index>(runs);
  // A whole block takes one row if the row is long, or if there are few rows and a warp would need several steps.
  const bool by_block = runs >= 4 * 32 * kGroupUnroll || (runs >= 64 && a.rows < sms * 64);
  const int64_t most = by_block ? std::clamp<int64_t>(runs / (kGroupThreads * kGroupUnroll), 1, 65535) : 1;
  const int64_t parts = std::clamp<int64_t>(sms * kGroupBlocks / a.rows, 1, most);
  const int64_t part = (runs + parts - 1) / parts;
  a.part = static_cast<Index>(part);
  a.parts = (runs + part - 1) / part;
  if (a.parts > 1) {
    a.sums = static_cast<double*>(host.scratch(a.parts * a.rows * 2 * sizeof(double)));
  }
  const auto launch = [&]<int Threads>() {
    const dim3 grid(static_cast<unsigned>(row_blocks(a.rows, kRowsPerBlock<Threads>)), static_cast<unsigned>(a.parts));
    sum_groups<Size, Threads><<<grid, kRowBlock<Threads>, 0, stream>>>(a);
  };
  if (by_block) {
    launch.template operator()<kGroupThreads>();
  } else {
    launch.template operator()<32>();
  }
  check_launch("a kernel of a group norm");
  if (a.parts > 1) {
    rows.template finish<Index>(host, a.sums, a.parts);
  }
}

}  // namespace fuseconv::cuda
