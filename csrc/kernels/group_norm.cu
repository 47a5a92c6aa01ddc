// The group norm of kernels/group_norm.h on CUDA, in two passes. The first pass computes the moments of the groups and
// folds weight and bias into the moments of each channel. The second pass computes one multiply-add per element and the
// activation.
//
// x is read twice and y is written once. Eager PyTorch with a separate activation reads x twice, writes and reads the
// norm, and writes y. Fusion reduces these five memory passes to three, or to two if x stays in L2 between the passes,
// as a bf16 tensor [2, 320, 64, 64] (5 MB) does.
#include "kernels/group_norm.h"

#include "kernels/group_moments.cuh"
#include "kernels/pointwise.cuh"
#include "kernels/reduce.cuh"

namespace fuseconv::cuda {
namespace {

// Makes the moments of an element's channel an operand of kernels/pointwise.cuh.
struct ChannelOperand {
  const void* channels;  // Moments [N, C]
  int64_t span;          // the number of elements in a channel
  Divisor<uint32_t> divisor;
  int64_t first = 0;  // the index of the first element of the slab

  struct Place {
    int64_t channel;
    int64_t left;  // the number of elements to the end of the channel
  };

  template <class A, int Size>
  struct Values {
    Moments<A> values[Size];
  };

  ChannelOperand from(int64_t offset) const { return {channels, span, divisor, first + offset}; }

  template <int>
  __device__ __forceinline__ Place fetch(int64_t offset) const {
    const int64_t index = first + offset;
    const int64_t channel = index < (int64_t{1} << 31) ? divisor.quotient(static_cast<uint32_t>(index)) : index / span;
    return {channel, (channel + 1) * span - index};
  }

  template <class T, int Size>
  __device__ __forceinline__ Values<Compute<T>, Size> values(Place place) const {
    const auto* own = static_cast<const Moments<Compute<T>>*>(channels) + place.channel;
    Values<Compute<T>, Size> result;
    if (span < Size) {
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        result.values[i] = own[divisor.quotient(static_cast<uint32_t>(span - place.left) + i)];
      }
      return result;
    }
    // A run belongs to one channel or to two adjacent channels.
    const Moments<Compute<T>> moments = own[0], next = own[place.left < Size ? 1 : 0];
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      result.values[i] = i < place.left ? moments : next;
    }
    return result;
  }
};

template <class Act>
struct NormalisedAct {
  Act act;

  // The channel is fetched first, so that its loads are issued before the kernel waits for the element.
  template <class Channel, class A>
  __device__ __forceinline__ A operator()(const Channel& channel, A x) const {
    return act(A(channel.normalised(value_of(x))));
  }
};

// Returns the moments of each channel of each image.
template <class T>
const void* channel_moments(CudaHost& host, const GroupNorm& norm) {
  const GroupRows<T> rows(host, norm);
  const auto& [kept, taken] = rows.loops;
  constexpr int kSize = kVectorSize<T>;
  const bool whole = taken.count() % kSize == 0;
  if (whole && has_aligned_runs(rows.loops, true, rows.x) && fits_32_bits(kept, 2, 1) &&
      fits_32_bits(taken, 1, kSize)) {
    launch_group_moments<kSize, uint32_t>(host, rows);
  } else if (fits_32_bits(kept, 2, 1) && fits_32_bits(taken, 1, 1)) {
    launch_group_moments<1, uint32_t>(host, rows);
  } else {
    launch_group_moments<1, int64_t>(host, rows);
  }
  return rows.channels.result;
}

}  // namespace

void group_norm(CudaHost& host, const GroupNorm& norm) {
  const int64_t elements = element_count(norm.x);
  if (elements == 0) {
    return;
  }
  if (is_channels_last(norm.y)) {
    return group_norm_channels_last(host, norm);
  }
  const void* channels = nullptr;
  dispatch(norm.x.dtype, [&]<class T>(T) { channels = channel_moments<T>(host, norm); });
  const int64_t span = elements / (norm.x.sizes[0] * norm.x.sizes[1]);
  const ChannelOperand operand{channels, span, Divisor<uint32_t>(std::min(span, int64_t{1} << 31))};
  activated_pointwise<NormalisedAct>(host, norm.activation, norm.y, operand, norm.x);
}

}  // namespace fuseconv::cuda
