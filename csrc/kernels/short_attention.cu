#include "kernels/short_attention.cuh"

#include "core/shared_memory.h"
#include "kernels/attention_operands.h"

namespace fuseconv::cuda {
namespace {

using attention_kernel::Arguments;
using attention_kernel::kThreads;
using attention_kernel::kTile;
using attention_kernel::kWarps;

// Returns the most shared memory that a block may have on the current device.
size_t most_shared() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<size_t>(bytes);
}

template <class T, int kWidth>
bool launch(CudaHost& host, Arguments a) {
  const auto bytes_with = [&](int tiles) {
    return attention_kernel::shared_bytes<kWidth>(a.keys, tiles, a.mask != nullptr);
  };
  a.tiles = a.queries <= kTile ? 1 : a.queries <= 2 * kTile ? 2 : kWarps;
  const size_t most = most_shared();
  while (a.tiles < kWarps && bytes_with(a.tiles) > most / 2) {  // so that two blocks fit on an SM
    a.tiles *= 2;
  }
  const size_t bytes = bytes_with(a.tiles);
  const int64_t groups = (a.queries + a.tiles * kTile - 1) / (a.tiles * kTile);
  if (bytes > most || a.head_count * groups >= kMaxBlocks) {
    return false;
  }
  a.groups = Divisor<uint32_t>(groups);
  const auto kernel = a.mask == nullptr ? attention_kernel::short_attention_kernel<T, kWidth, false>
                                        : attention_kernel::short_attention_kernel<T, kWidth, true>;
  allow_shared_memory(kernel, bytes);
  const uint32_t heads_per_block = kWarps / a.tiles;
  const uint32_t blocks = (a.head_count + heads_per_block - 1) / heads_per_block * a.groups.divisor;
  kernel<<<blocks, kThreads, bytes, stream_of(host)>>>(a);
  check_launch("attention over few keys");
  return true;
}

template <class T>
bool with_width(CudaHost& host, const Arguments& a) {
  return a.width <= 16   ? launch<T, 16>(host, a)
         : a.width <= 32 ? launch<T, 32>(host, a)
         : a.width <= 48 ? launch<T, 48>(host, a)
         : a.width <= 64 ? launch<T, 64>(host, a)
         : a.width <= 96 ? launch<T, 96>(host, a)
                         : launch<T, 128>(host, a);
}

}  // namespace

bool short_attention(CudaHost& host, const AttentionProblem& p) {
  const int rank = p.y.rank;
  const int64_t queries = p.y.sizes[rank - 2], keys = p.k.sizes[rank - 2], width = p.q.sizes[rank - 1];
  if (!is_supported(p) || p.is_causal || keys > attention_kernel::kMostKeys || width == 0 || width > 128 ||
      p.v.sizes[rank - 1] != width) {
    return false;
  }
  const Loop heads = matrices_of(p), masks = masks_of(p);
  Arguments a{};
  if (!fits_32_bits(heads, 4, 1) || !fits_32_bits(masks, 2, 1)) {
    return false;
  }
  a.heads = IndexSpace<uint32_t, 4>(heads, 1);
  a.masks = IndexSpace<uint32_t, 2>(masks, 1);
  a.head_count = static_cast<uint32_t>(heads.count());
  a.queries = static_cast<int>(queries);
  a.keys = static_cast<int>(keys);
  a.width = static_cast<int>(width);
  a.q_row = p.q.strides[rank - 2];
  a.k_row = p.k.strides[rank - 2];
  a.v_row = p.v.strides[rank - 2];
  a.y_row = p.y.strides[rank - 2];
  if (p.mask) {
    a.mask_row = p.mask->strides[rank - 2];
    a.mask_column = p.mask->strides[rank - 1];
    a.mask = p.mask->data;
    a.mask_in_vectors = is_aligned(a.mask) && a.mask_column == 1;
    for (int axis = 0; axis + 1 < rank; ++axis) {
      a.mask_in_vectors &= p.mask->sizes[axis] == 1 || p.mask->strides[axis] % 8 == 0;
    }
  }
  a.q = p.q.data;
  a.k = p.k.data;
  a.v = p.v.data;
  a.y = p.y.data;
  a.scale = static_cast<float>(p.scale);
  return p.y.dtype == Dtype::f16 ? with_width<__half>(host, a) : with_width<__nv_bfloat16>(host, a);
}

}  // namespace fuseconv::cuda
