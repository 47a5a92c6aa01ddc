#include "gemm/tf32x3.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <utility>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/tensor_map.h"
#include "gemm/tf32x3_kernel.cuh"

namespace fuseconv::linear::tf32x3 {
namespace {

constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() - 512;  // the limit of sizes and of numbers of tiles
constexpr int64_t kShortest = 64;

bool aligned(const void* data, int64_t stride, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * 4 % bytes == 0;
}

int64_t parts(int64_t size, int part) { return (size + part - 1) / part; }

struct Kernel {
  const void* function;
  int rows, columns;  // the size of a tile: rows of x by rows of w
  int threads;
  uint32_t shared_bytes;
};

template <class Tile>
Kernel describe(const Problem& p) {
  return {p.gated != 0 ? reinterpret_cast<const void*>(&tf32x3_kernel<Tile, true>)
                       : reinterpret_cast<const void*>(&tf32x3_kernel<Tile, false>),
          Tile::kRows, Tile::kColumns, Tile::kThreads, Tile::kBytes};
}

Kernel find(const Problem& p, int shape) {
  switch (shape) {
    case 0:
      return describe<Tile<2, 128>>(p);
    case 1:
      return describe<Tile<2, 64>>(p);
    default:
      return describe<Tile<1, 64>>(p);
  }
}

// Returns the positions of a convolution's kernel. A matrix has one.
int positions_of(const Problem& p) { return p.is_convolution() ? p.windows.positions() : 1; }

// Returns the number of steps along k. Each position starts a step, and the kernel makes two steps at a time.
int64_t steps_of(const Problem& p) {
  const int64_t positions = positions_of(p);
  return parts(positions * parts(p.k / positions, kDepth), 2) * 2;
}

struct Grid {
  int64_t rows, columns;  // the number of tiles along the rows and columns
};

Grid grid_of(const Problem& p, const Kernel& kernel) {
  return {parts(p.m, kernel.rows), parts(p.n, kernel.columns / (p.gated != 0 ? 2 : 1))};
}

}  // namespace

std::vector<int> shapes(const Problem& p) {
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
  std::vector<std::pair<double, int>> guesses;
  for (int shape = 0; shape < static_cast<int>(std::size(kShapes)); ++shape) {
    const Kernel kernel = find(p, shape);
    const Grid grid = grid_of(p, kernel);
    // Each product of f32 factors takes three TF32 products, of which the Tensor Cores compute 1024 per clock.
    const double step = kernel.rows * kernel.columns * 3 * kDepth / 1024.0;
    const double tile = static_cast<double>(steps_of(p)) * step + 2000.0;
    guesses.emplace_back(static_cast<double>(parts(grid.rows * grid.columns, sms)) * tile, shape);
  }
  std::stable_sort(guesses.begin(), guesses.end());
  std::vector<int> found;
  for (const auto& guess : guesses) {
    found.push_back(guess.second);
  }
  return found;
}

std::string refuses(const Problem& p) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) {
    return "the device is not of compute capability 9.0";
  }
  if (p.element != Element::f32 || p.tf32 != 0) {
    return "it is for f32 where TF32 is not allowed";
  }
  const int64_t w_limit = p.gated != 0 ? kLimit / 2 : kLimit;
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.m > kLimit || p.n > w_limit || p.k > kLimit) {
    return "a size is 0 or does not fit in 32 bits";
  }
  if (p.k < kShortest) {
    return "a sum of fewer than 64 products is more exact in f32";
  }
  if (p.weight_transposed != 0) {
    return "the weight's rows are not dense";
  }
  if (p.batch != 0) {
    return "it makes one product at a time";
  }
  if (!aligned(p.x, p.x_stride, 16) || !aligned(p.weight, p.weight_stride, 16)) {
    return "x or weight does not start, and step from row to row, at multiples of 16 bytes";
  }
  if (p.is_convolution()) {
    const Windows& w = p.windows;
    if (w.groups > 1) {
      return "the channels are in groups";
    }
    if (p.weight_stride != p.k) {
      return "the positions of the weight are not adjacent";
    }
    if (!std::ranges::all_of(std::initializer_list<int64_t>{w.image_stride, w.row_stride, w.pixel_stride, w.channels},
                             [](int64_t stride) { return stride % 4 == 0; })) {
      return "pixels, or positions of the weight, do not start at multiples of 16 bytes";
    }
    if (!can_gather(w)) {
      return "TMA does not support this padding, stride or dilation";
    }
  }
  return "";
}

void run(const Problem& p, int shape) {
  if (const std::string reason = refuses(p); !reason.empty()) {
    throw std::runtime_error("fuseconv::linear_act: backend tf32x3 refuses: " + reason);
  }
  const Kernel kernel = find(p, shape);
  const Grid grid = grid_of(p, kernel);
  if (grid.rows * grid.columns > kLimit) {
    throw std::runtime_error("fuseconv::linear_act: backend tf32x3 refuses: more than 2^31 tiles");
  }
  const Windows& windows = p.windows;
  const int positions = positions_of(p);
  const int64_t channels = p.k / positions;
  CUtensorMap x_map =
      p.is_convolution()
          ? pixel_map(p.element, p.x, p.m / (int64_t{windows.y_height} * windows.y_width), windows, kernel.rows, kDepth)
          : tensor_map(p.element, p.x, p.m, p.k, p.x_stride, kernel.rows, kDepth);
  CUtensorMap w_map = tensor_map(p.element, p.weight, p.n * (p.gated != 0 ? 2 : 1), positions, channels,
                                 p.weight_stride, kernel.columns / 2, kDepth);
  const auto f32 = [](const void* data) { return static_cast<const float*>(data); };
  Arguments arguments{f32(p.x),
                      f32(p.weight),
                      f32(p.bias),
                      f32(p.residual),
                      static_cast<float*>(p.y),
                      p.x_stride,
                      p.weight_stride,
                      p.residual_stride,
                      p.y_stride,
                      static_cast<int>(p.m),
                      static_cast<int>(p.n),
                      positions,
                      static_cast<int>(channels),
                      p.is_convolution(),
                      has_rows(windows),
                      windows,
                      p.is_convolution() ? FirstPixels::of(windows) : FirstPixels{},
                      static_cast<int>(grid.rows),
                      static_cast<int>(grid.columns),
                      static_cast<int>(steps_of(p)),
                      p.activation,
                      aligned(p.y, p.y_stride, 8) && aligned(p.residual, p.residual_stride, 8),
                      p.residual_first != 0};
  allow_shared_memory(kernel.function, kernel.shared_bytes);
  void* parameters[] = {&x_map, &w_map, &arguments};
  cudaLaunchAttribute attributes[1];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(
      std::min<int64_t>(device_attribute(cudaDevAttrMultiProcessorCount), grid.rows * grid.columns)));
  launch.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  launch.dynamicSmemBytes = kernel.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(p.stream);
  launch.attrs = attributes;
  launch.numAttrs = 1;
  cuda_check(cudaLaunchKernelExC(&launch, kernel.function, parameters), "launch of tf32x3_kernel");
}

}  // namespace fuseconv::linear::tf32x3
