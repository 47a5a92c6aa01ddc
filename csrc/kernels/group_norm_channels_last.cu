// The group norm of kernels/group_norm.h of a channels-last tensor on CUDA. Its result is channels last too, as the
// convolutions before and after it want it.
//
// A thread has one run of channels and takes every `lanes`-th position of a part of an image, so a block reads whole
// positions. The first kernel adds the distances of a channel to one of its elements in registers, shifts these sums to
// the origin of the group in f64, and adds them up in shared memory, in the same order on every run. add_parts
// (kernels/group_moments.cuh) then computes the moments of the channels, which the last kernel holds in registers. The
// last kernel begins where the first ended, because L2 still holds what was read last.
#include "kernels/dense_rows.h"
#include "kernels/group_moments.cuh"
#include "kernels/group_norm.h"

namespace fuseconv::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;      // the number of runs that a thread holds
constexpr int kMostLanes = 64;  // a thread adds the sums of all lanes of a channel
// The least number of positions of a thread, and the largest number that it adds in the compute type.
constexpr int kFewPositions = 2 * kUnroll, kManyPositions = 64;
constexpr int kResident = 3;  // blocks per SM

template <class T>
struct ImageArguments {
  int64_t positions;  // of an image
  int64_t parts;      // of an image
  int part;           // the number of positions of a part
  int64_t step;       // from a position of x to the next
  int channels, groups;
  Divisor<uint32_t> span;  // the number of channels of a group
  int64_t rows;            // groups of all images
  Activation activation;
  const T* x;
  T* y;
  double* sums;                        // [slices * parts, rows, 2]
  const Moments<Compute<T>>* moments;  // [N, C]
};

// What a thread works on. A block takes a part of an image and a slice, which has at most kThreads runs of channels.
template <int Size, class T>
struct Place {
  int64_t image, part;
  int64_t first_position;  // of the part, counted from the first image
  int positions;           // of the part
  int first;               // the first channel of the slice
  int runs;                // the number of runs of the slice
  int lanes, lane;
  int channel;  // the first of the thread

  __device__ __forceinline__ Place(const ImageArguments<T>& a, unsigned block) {
    image = block / a.parts;
    part = block - image * a.parts;
    const int64_t begin = part * a.part;
    first_position = image * a.positions + begin;
    positions = static_cast<int>(min(int64_t{a.part}, a.positions - begin));
    first = static_cast<int>(blockIdx.y) * kThreads * Size;
    runs = min(kThreads, (a.channels - first) / Size);
    lanes = min(kThreads / runs, kMostLanes);
    lane = static_cast<int>(threadIdx.x) / runs;
    channel = first + (static_cast<int>(threadIdx.x) - lane * runs) * Size;
  }

  // Calls `use` with up to kUnroll loaded runs, the first of their positions and their number, until the part is done.
  template <class Use>
  __device__ __forceinline__ void for_each(const T* data, int64_t step, Use use) const {
    for (int position = lane; position < positions; position += kUnroll * lanes) {
      Run<T, Size> loaded[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (position + u * lanes < positions) {
          loaded[u] = load_run<Size>(data + (position + u * lanes) * step);
        }
      }
      use(loaded, position);
    }
  }
};

// Adds the distances and squares of a thread's elements to `center`, which becomes an element of each channel or, for
// f32 and f64, the mean of the first elements. Returns the number of positions.
template <int Size, class T, class A = Compute<T>>
__device__ __forceinline__ int add_positions(const Place<Size, T>& place, const T* data, int64_t step,
                                             A (&center)[Size], A (&distances)[Size], A (&squares)[Size]) {
  constexpr A kPart = A(1) / kManyPositions;  // values are scaled before they are added: their sum could overflow
  int total = 0;
  place.for_each(data, step, [&](const Run<T, Size>(&loaded)[kUnroll], int position) {
    const int count = min(kUnroll, (place.positions - position - 1) / place.lanes + 1);
    A values[Size];
    if (total == 0) {
      widen_run(loaded[0], center);
      if constexpr (sizeof(T) != 2) {
        const A share = A(1) / count;
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          center[i] *= share;
        }
#pragma unroll
        for (int u = 1; u < kUnroll; ++u) {
          widen_run(loaded[u], values);
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            center[i] += values[i] * share;
          }
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      widen_run(loaded[u], values);
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        const A distance = u < count ? values[i] - center[i] : A(0);
        distances[i] += distance * kPart;
        squares[i] += distance * distance;
      }
    }
    total += count;
  });
  return total;
}

template <int Size, class T>
__global__ void __launch_bounds__(kThreads, kResident) sum_images(const __grid_constant__ ImageArguments<T> a) {
  using A = Compute<T>;
  // The sums of a thread's channels are a row apart, so that the threads of a warp store to different banks.
  constexpr int kRow = kThreads + 1;
  __shared__ double2 shared[Size * kRow];
  const Place<Size, T> place(a, blockIdx.x);
  const int span = static_cast<int>(a.span.divisor);
  if (place.lane < place.lanes) {
    A center[Size] = {}, distances[Size] = {}, squares[Size] = {};
    const int total =
        add_positions(place, a.x + place.first_position * a.step + place.channel, a.step, center, distances, squares);
    const T* const origins = a.x + place.image * a.positions * a.step;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      const double origin = widen(origins[a.span.quotient(place.channel + i) * span]);
      const double n = total, sum = static_cast<double>(distances[i]) * kManyPositions, shift = center[i] - origin;
      shared[i * kRow + threadIdx.x] =
          total == 0 ? double2{0, 0} : double2{sum + n * shift, squares[i] + shift * (2.0 * sum + n * shift)};
    }
  }
  __syncthreads();
  // The sums of each channel: of all lanes.
  const int width = place.runs * Size;
  for (int channel = threadIdx.x; channel < width; channel += kThreads) {
    double2* const own = shared + channel % Size * kRow + channel / Size;
    double2 sums = own[0];
    for (int lane = 1; lane < place.lanes; ++lane) {
      const double2 one = own[lane * place.runs];
      sums = {sums.x + one.x, sums.y + one.y};
    }
    own[0] = sums;
  }
  __syncthreads();
  // The sums of each group: of those of its channels that the slice has.
  double* const result = a.sums + ((int64_t{blockIdx.y} * a.parts + place.part) * a.rows + place.image * a.groups) * 2;
  Group<8> group;
  for (int begin = 0; begin < a.groups; begin += kThreads / 8) {
    const int index = begin + static_cast<int>(threadIdx.x) / 8;
    double sums[2] = {};
    if (index < a.groups) {
      const int from = max(index * span - place.first, 0), to = min((index + 1) * span - place.first, width);
      for (int channel = from + static_cast<int>(threadIdx.x) % 8; channel < to; channel += 8) {
        const double2 one = shared[channel % Size * kRow + channel / Size];
        sums[0] += one.x;
        sums[1] += one.y;
      }
    }
    group.reduce(Add{}, sums);
    if (index < a.groups && threadIdx.x % 8 == 0) {
      result[index * 2] = sums[0];
      result[index * 2 + 1] = sums[1];
    }
  }
}

template <int Size, class T>
__global__ void __launch_bounds__(kThreads, kResident) normalise_images(const __grid_constant__ ImageArguments<T> a) {
  using A = Compute<T>;
  const Place<Size, T> place(a, gridDim.x - 1 - blockIdx.x);
  if (place.lane >= place.lanes) {
    return;
  }
  Moments<A> moments[Size];
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    moments[i] = a.moments[place.image * a.channels + place.channel + i];
  }
  const T* const x = a.x + place.first_position * a.step + place.channel;
  T* const y = a.y + place.first_position * a.channels + place.channel;
  place.for_each(x, a.step, [&](const Run<T, Size>(&loaded)[kUnroll], int position) {
    dispatch(a.activation, [&](auto act) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (position + u * place.lanes < place.positions) {
          A values[Size];
          widen_run(loaded[u], values);
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            values[i] = act(moments[i].normalised(values[i]));
          }
          store_run(y + int64_t{position + u * place.lanes} * a.channels, narrow_run<T, Size>(values));
        }
      }
    });
  });
}

template <int Size, class T>
void launch(CudaHost& host, const GroupNorm& norm, const DenseRows& positions) {
  const GroupRows<T> rows(host, norm);
  const auto quotient = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  const int64_t images = norm.x.sizes[0], channels = norm.x.sizes[1], runs = channels / Size;
  ImageArguments<T> a{};
  a.channels = static_cast<int>(channels);
  a.positions = element_count(norm.x) / images / channels;
  a.groups = static_cast<int>(norm.groups);
  a.span = Divisor<uint32_t>(channels / norm.groups);
  a.rows = images * norm.groups;
  a.activation = norm.activation;
  a.x = static_cast<const T*>(positions.data);
  a.step = positions.stride;
  a.y = static_cast<T*>(norm.y.data);
  const int64_t slices = quotient(runs, kThreads);
  const int64_t lanes = std::min<int64_t>(kThreads / std::min<int64_t>(runs, kThreads), kMostLanes);
  const int64_t least = quotient(a.positions, lanes * kManyPositions);
  const int64_t most = quotient(a.positions, lanes * kFewPositions);
  const int64_t wanted = quotient(sm_count() * kResident, images * slices);
  a.part = static_cast<int>(quotient(a.positions, std::max(least, std::min(wanted, most))));
  a.parts = quotient(a.positions, a.part);
  a.sums = static_cast<double*>(host.scratch(slices * a.parts * a.rows * 2 * sizeof(double)));
  a.moments = rows.channels.result;
  check(channels < kMaxBlocks && images * a.parts <= kMaxBlocks, "fuseconv: a tensor is too large for a group norm");
  const dim3 grid(static_cast<unsigned>(images * a.parts), static_cast<unsigned>(slices));
  sum_images<Size><<<grid, kThreads, 0, stream_of(host)>>>(a);
  check_launch("a kernel of a group norm");
  rows.finish(host, a.sums, slices * a.parts);
  normalise_images<Size><<<grid, kThreads, 0, stream_of(host)>>>(a);
  check_launch("a kernel of a group norm");
}

}  // namespace

void group_norm_channels_last(CudaHost& host, const GroupNorm& norm) {
  const PixelRows rows(norm.x);
  const DenseRows positions = dense_rows(host, rows.of(norm.x));  // the image may have gaps
  dispatch(norm.x.dtype, [&]<class T>(T) {
    const bool whole = norm.x.sizes[1] % kVectorSize<T> == 0 && positions.stride % kVectorSize<T> == 0 &&
                       is_aligned(positions.data) && is_aligned(norm.y.data);
    whole ? launch<kVectorSize<T>, T>(host, norm, positions) : launch<1, T>(host, norm, positions);
  });
}

}  // namespace fuseconv::cuda
