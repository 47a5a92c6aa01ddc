#include "gemm/sm80.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/sm80_kernel.cuh"

namespace fuseconv::linear::sm80 {
namespace {

constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() - 512;  // the limit of sizes and of numbers of tiles

struct Kernel {
  const void* function;
  int rows, columns;  // the size of a tile of y
  int threads;
  unsigned shared_bytes;
};

template <class Tile>
Kernel describe() {
  return {reinterpret_cast<const void*>(&linear_kernel<Tile>), Tile::kRows, Tile::kYColumns, Tile::kThreads,
          Tile::kBytes};
}

template <class T, bool kGated>
Kernel of_shape(int shape) {
  switch (shape) {
    case 0:
      return describe<Tile<T, 128, 256, 64, 64, 3, kGated>>();
    case 1:
      return describe<Tile<T, 128, 128, 64, 64, 3, kGated>>();
    default:
      return describe<Tile<T, 64, 64, 32, 32, 4, kGated>>();
  }
}

Kernel find(const Problem& p, int shape) {
  if (p.element == Element::bf16) {
    return p.gated != 0 ? of_shape<__nv_bfloat16, true>(shape) : of_shape<__nv_bfloat16, false>(shape);
  }
  return p.gated != 0 ? of_shape<__half, true>(shape) : of_shape<__half, false>(shape);
}

int64_t parts(int64_t size, int part) { return (size + part - 1) / part; }

bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

}  // namespace

std::vector<int> shapes(const Problem& p) {
  // The time per product of each tile, relative to the first tile, measured on an H200. A smaller tile reads more
  // global and shared memory per product.
  constexpr double kSlowness[] = {1.0, 1.1, 1.5};
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  std::vector<std::pair<double, int>> guesses;
  for (int shape = 0; shape < static_cast<int>(std::size(kShapes)); ++shape) {
    const Kernel kernel = find(p, shape);
    if (kernel.shared_bytes <= room) {
      const int64_t tiles = parts(p.m, kernel.rows) * parts(p.n, kernel.columns);
      const double work = static_cast<double>(kernel.rows) * kernel.columns * kSlowness[shape];
      guesses.emplace_back(static_cast<double>(parts(tiles, sms)) * work, shape);
    }
  }
  std::sort(guesses.begin(), guesses.end());
  std::vector<int> found;
  for (const auto& [clocks, shape] : guesses) {
    found.push_back(shape);
  }
  return found;
}

std::string refuses(const Problem& p) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 8) {
    return "the device is not of compute capability 8.0 or above";
  }
  if (p.element != Element::f16 && p.element != Element::bf16) {
    return "the element type is neither f16 nor bf16";
  }
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.m > kLimit || p.n > kLimit / 2 || p.k > kLimit ||
      parts(p.m, 64) * parts(p.n, 32) > kLimit) {
    return "a size is 0 or too large for 32 bits";
  }
  if (p.weight_transposed != 0) {
    return "the weight's rows are not dense";
  }
  if (!aligned(p.x, p.x_stride) || !aligned(p.weight, p.weight_stride) || !aligned(p.y, p.y_stride)) {
    return "x, weight or y does not start, and step from row to row, at multiples of 16 bytes";
  }
  return "";
}

void run(const Problem& p, int shape) {
  if (const std::string reason = refuses(p); !reason.empty()) {
    throw std::runtime_error("fuseconv::linear_act: backend sm80 refuses: " + reason);
  }
  const Kernel kernel = find(p, shape);
  allow_shared_memory(kernel.function, kernel.shared_bytes);
  Arguments arguments{};
  arguments.x = p.x;
  arguments.w = p.weight;
  arguments.bias = p.bias;
  arguments.residual = p.residual;
  arguments.y = p.y;
  arguments.x_stride = p.x_stride;
  arguments.w_stride = p.weight_stride;
  arguments.residual_stride = p.residual_stride;
  arguments.residual_first = p.residual_first != 0;
  arguments.y_stride = p.y_stride;
  arguments.m = static_cast<int>(p.m);
  arguments.n = static_cast<int>(p.n);
  arguments.k = static_cast<int>(p.k);
  arguments.row_tiles = static_cast<int>(parts(p.m, kernel.rows));
  arguments.column_tiles = static_cast<int>(parts(p.n, kernel.columns));
  arguments.activation = p.activation;
  void* parameters[] = {&arguments};
  cuda_check(
      cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(arguments.row_tiles * arguments.column_tiles)),
                       dim3(static_cast<unsigned>(kernel.threads)), parameters, kernel.shared_bytes,
                       static_cast<cudaStream_t>(p.stream)),
      "launch of linear_kernel");
}

}  // namespace fuseconv::linear::sm80
