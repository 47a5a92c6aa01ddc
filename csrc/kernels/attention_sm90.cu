// Launches the kernel of kernels/attention_sm90.cuh.
#include "kernels/attention_sm90.cuh"

#include <algorithm>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/tensor_map.h"
#include "kernels/attention_operands.h"

namespace fuseconv::cuda {
namespace {

using namespace attention_sm90_kernel;

constexpr int64_t kMostWorks = int64_t{1} << 30;
constexpr int kStoredRows = 16;  // of a box of y, the rows of a warp

// Returns whether rows are one behind the other, as TMA reads them.
bool has_rows(In x) { return x.sizes[x.rank - 2] == 1 || x.strides[x.rank - 2] > 0; }

MatrixDims dims_of(const Loop& loop) {
  MatrixDims dims;
  for (int dim = 0; dim + 1 < kMatrixDims; ++dim) {
    dims.sizes[dim] = Divisor<uint32_t>(dim < loop.rank ? loop.sizes[loop.rank - 1 - dim] : 1);
  }
  return dims;
}

// Fills what the arguments say about an operand of `rows` rows, whose strides are the `at`-th of a loop. A dim along
// which an operand has one matrix is none of its map.
void add_operand(Arguments& a, Operand operand, In x, int64_t rows, const Loop& loop, int at, int box_rows) {
  constexpr int64_t kAnyStride = 8;
  int64_t sizes[5] = {x.sizes[x.rank - 1], rows, 1, 1, 1};
  int64_t strides[4] = {rows == 1 ? kAnyStride : x.strides[x.rank - 2], kAnyStride, kAnyStride, kAnyStride};
  for (int dim = 0; dim < loop.rank; ++dim) {
    const int axis = loop.rank - 1 - dim;
    if (loop.sizes[axis] > 1 && loop.strides[at][axis] > 0) {
      a.varies[operand][dim] = true;
      sizes[2 + dim] = loop.sizes[axis];
      strides[1 + dim] = loop.strides[at][axis];
    }
  }
  a.maps[operand] = linear::matrices_map(x.dtype, x.data, sizes, strides, box_rows, 64);
}

void add_mask(Arguments& a, In mask, const Loop& masks) {
  const int rank = mask.rank;
  const auto is_multiple = [&](int number) {
    bool is = reinterpret_cast<uintptr_t>(mask.data) % (2 * number) == 0 && mask.strides[rank - 1] == 1;
    for (int axis = 0; axis + 1 < rank; ++axis) {
      is &= mask.sizes[axis] == 1 || mask.strides[axis] % number == 0;
    }
    return is;
  };
  a.mask = mask.data;
  a.mask_row = mask.strides[rank - 2];
  a.mask_column = mask.strides[rank - 1];
  a.mask_in_pairs = is_multiple(2);
  a.masks = IndexSpace<uint32_t, 2>(masks, 1);
  if (is_multiple(8) && masks.rank <= kMatrixDims) {
    a.mask_rows = a.mask_row == 0 || a.queries == 1 ? 1 : kQueries;
    a.mask_dims = dims_of(masks);
    add_operand(a, kMask, mask, a.mask_rows == 1 ? 1 : a.queries, masks, 1, a.mask_rows);
  }
}

// Returns how many keys a tile has. A smaller tile wastes less of the last one, but each tile costs about as much as 16
// keys more. The tiles of causal attention are as long as those of its queries, so that few are partly hidden.
int tile_keys(int keys, bool is_causal) {
  constexpr int kTileCost = 16;
  if (is_causal && keys > kQueries) {
    return kQueries;
  }
  const auto cost = [&](int tile) { return (keys + tile - 1) / tile * (tile + kTileCost); };
  return std::min({128, 112, 96}, [&](int one, int other) { return cost(one) < cost(other); });
}

template <class T, int kWidth, int kKeys, bool kMasked>
bool launch(CudaHost& host, const Arguments& a) {
  const auto kernel = attention_sm90_kernel::attention_sm90_kernel<T, kWidth, kKeys, kMasked>;
  // A library that was built without code for sm_90a has code for older GPUs, which the driver compiles for Hopper.
  static const bool is_compiled = [&] {
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= 90;
  }();
  if (!is_compiled) {
    return false;
  }
  constexpr uint32_t kBytes = Shape<kWidth, kKeys, kMasked>::kBytes;
  static_assert(kBytes <= 227 * 1024);
  allow_shared_memory(kernel, kBytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(a.works, sm_count())));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream_of(host);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, a), "launch of attention_sm90");
  return true;
}

template <class T, int kKeys>
bool launch(CudaHost& host, const Arguments& a, int64_t width) {
  const bool is_masked = a.mask != nullptr;
  if (width <= 64) {
    return is_masked ? launch<T, 64, kKeys, true>(host, a) : launch<T, 64, kKeys, false>(host, a);
  }
  return is_masked ? launch<T, 128, kKeys, true>(host, a) : launch<T, 128, kKeys, false>(host, a);
}

template <class T>
bool launch(CudaHost& host, const Arguments& a, int64_t width, int keys) {
  switch (keys) {
    case 96:
      return launch<T, 96>(host, a, width);
    case 112:
      return launch<T, 112>(host, a, width);
    default:
      return launch<T, 128>(host, a, width);
  }
}

}  // namespace

bool attention_sm90(CudaHost& host, const AttentionProblem& p) {
  const int rank = p.y.rank;
  const int64_t keys = p.k.sizes[rank - 2], queries = p.y.sizes[rank - 2];
  const int64_t least = std::min(p.q.sizes[rank - 1], p.v.sizes[rank - 1]);
  const int64_t width = std::max(p.q.sizes[rank - 1], p.v.sizes[rank - 1]);
  if (!is_supported(p) || least == 0 || width > 128 || keys >= (int64_t{1} << 30) ||
      linear::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 || !has_rows(p.q) || !has_rows(p.k) ||
      !has_rows(p.v) || !has_rows(p.y)) {
    return false;
  }
  const Loop heads = matrices_of(p), masks = masks_of(p);
  const int64_t tiles = (queries + kQueries - 1) / kQueries;
  if (heads.rank > kMatrixDims || !fits_32_bits(heads, 4, 1) || !fits_32_bits(masks, 2, 1) ||
      heads.count() * tiles >= kMostWorks) {
    return false;
  }
  Arguments a{};
  a.heads = Divisor<uint32_t>(heads.count());
  a.dims = a.mask_dims = dims_of(heads);
  a.queries = static_cast<int>(queries);
  a.keys = static_cast<int>(keys);
  a.tiles = static_cast<int>(tiles);
  a.works = static_cast<int>(heads.count() * tiles);
  a.is_causal = p.is_causal;
  a.scale = static_cast<float>(p.scale);
  if (p.mask) {
    add_mask(a, *p.mask, masks);
  }
  add_operand(a, kY, p.y, queries, heads, kY, kStoredRows);
  add_operand(a, kQ, p.q, queries, heads, kQ, kQueries);
  const int tile = tile_keys(a.keys, a.is_causal);
  add_operand(a, kK, p.k, keys, heads, kK, tile);
  add_operand(a, kV, p.v, keys, heads, kV, tile);
  return p.y.dtype == Dtype::f16 ? launch<__half>(host, a, width, tile) : launch<__nv_bfloat16>(host, a, width, tile);
}

}  // namespace fuseconv::cuda
