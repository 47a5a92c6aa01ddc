#include "gemm/sm90.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/shared_memory.h"
#include "gemm/cuda_check.h"
#include "gemm/sm90_arguments.h"
#include "gemm/sm90_kernel_table.h"
#include "gemm/tensor_map.h"

namespace fuseconv::linear::sm90 {
namespace {

constexpr int kStepBytes = 128;  // of each row of x and w
constexpr size_t kCandidates = 10;
constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() - 512;  // the limit of sizes and of numbers of tiles

bool is_piecewise(Activation a) {
  return a == Activation::hard_swish || a == Activation::hard_sigmoid || a == Activation::relu6 ||
         a == Activation::relu_squared || a == Activation::leaky_relu;
}

Pieces pieces_of(Activation activation) {
  if (activation == Activation::leaky_relu) {
    return {static_cast<float>(activation.parameter), 0.0f, 0.0f, Pieces::two};
  }
  if (activation == Activation::relu_squared) {
    return {1.0f, 0.0f, std::numeric_limits<float>::infinity(), Pieces::clipped_squared};
  }
  if (activation == Activation::relu6) {
    return {1.0f, 0.0f, 6.0f, Pieces::clipped};
  }
  return {1.0f / 6.0f, 0.5f, 1.0f, activation == Activation::hard_swish ? Pieces::clipped_times_x : Pieces::clipped};
}

Kernel find(const Problem& p, int shape) {
  const Form form = p.gated != 0 ? Form::gated : p.residual != nullptr ? Form::residual : Form::plain;
  switch (is_piecewise(p.activation) ? Activation::hard_swish : p.activation.name) {
#define FUSECONV_CASE(name) \
  case Activation::name:    \
    return kernel<Activation::name>(p.element, form, shape);
    FUSECONV_SM90_ACTIVATIONS(FUSECONV_CASE)
#undef FUSECONV_CASE
    default:
      throw std::logic_error("linear: backend sm90 has no kernel for this activation");
  }
}

bool has_kernel(Activation activation) {
#define FUSECONV_IS(name) || activation == Activation::name
  return is_piecewise(activation) FUSECONV_SM90_ACTIVATIONS(FUSECONV_IS);
#undef FUSECONV_IS
}

// Returns the number of rows of x in a TMA box. If y has fewer rows than a tile, the box has fewer rows too, which
// saves copy time.
int x_box_rows(const Problem& p, const Kernel& kernel, int parts) {
  return static_cast<int>(std::min<int64_t>(kernel.rows / parts, (p.m + 7) / 8 * 8));
}

// Returns the number of columns of a step along k.
int depth_of(const Problem& p) { return static_cast<int>(kStepBytes / size_of(p.element)); }

// Returns the number of steps along k. Each position of a convolution's kernel starts a step.
int64_t steps_of(const Problem& p) {
  const int64_t positions = p.is_convolution() ? p.windows.positions() : 1, depth = depth_of(p);
  return positions * ((p.k / positions + depth - 1) / depth);
}

int64_t groups_of(const Problem& p) { return p.is_convolution() ? p.windows.groups : 1; }

// Returns the number of tiles of so many columns. A tile has columns of one group.
int64_t column_tiles(const Problem& p, int64_t columns) {
  const int64_t groups = groups_of(p);
  return groups * ((p.n / groups + columns - 1) / columns);
}

// Returns whether so many elements are a multiple of 16 bytes, as TMA needs.
bool is_whole(const Problem& p, int64_t elements) { return elements * size_of(p.element) % 16 == 0; }

bool aligned(const Problem& p, const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && is_whole(p, stride);
}

// Returns whether TMA can write y: its rows start at multiples of 16 bytes, and no box has columns of two groups.
bool is_written_by_map(const Problem& p) { return aligned(p, p.y, p.y_stride) && groups_of(p) == 1; }

}  // namespace

int encode(const Configuration& c) {
  return c.shape | (c.cluster_m - 1) << 4 | (c.cluster_n - 1) << 5 | (c.early ? 1 : 0) << 6 | c.strip << 8;
}

Configuration decode(int code) {
  return {code & 15, (code >> 4 & 1) + 1, (code >> 5 & 1) + 1, code >> 8, (code >> 6 & 1) != 0};
}

std::string to_string(const Configuration& c) {
  return std::string(kShapes[c.shape]) + " cluster " + std::to_string(c.cluster_m) + "x" + std::to_string(c.cluster_n) +
         " strip " + std::to_string(c.strip) + (c.early ? " early" : "");
}

std::vector<Configuration> configurations(const Problem& p) {
  struct Guess {
    double clocks;
    Configuration configuration;
  };
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const double steps = static_cast<double>(steps_of(p));
  std::vector<Guess> guesses;
  for (int shape = 0; shape < kTileShapes; ++shape) {
    const Kernel kernel = find(p, shape);
    if (kernel.function == nullptr) {
      continue;
    }
    // The Tensor Cores take 32 clocks for the step of 1024 elements of y, in 16 bits and in TF32; an SM loads about 64
    // bytes per clock. (Measured on an H200.)
    const double step = std::max(kernel.rows * kernel.w_rows / 32.0, (x_box_rows(p, kernel, 1) + kernel.w_rows) * 2.0);
    const double activations = kernel.rows * kernel.columns / 8.0;
    for (const auto& [cluster_m, cluster_n] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
      if (cluster_n > 1 && groups_of(p) > 1) {
        continue;
      }
      const bool alone = cluster_m * cluster_n == 1;
      const int64_t rows = (p.m + kernel.rows * cluster_m - 1) / (kernel.rows * cluster_m);
      const int64_t columns = column_tiles(p, kernel.columns * cluster_n);
      const int64_t slots = sms / (cluster_m * cluster_n);
      const double waves = static_cast<double>((rows * columns + slots - 1) / slots);
      const double exposed = kernel.ping_pong ? activations : waves * activations / kernel.groups;
      const double clocks = waves * steps * step + exposed + (alone ? 0 : 200);
      guesses.push_back({clocks, {shape, cluster_m, cluster_n, 8, true}});
    }
  }
  std::stable_sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) { return a.clocks < b.clocks; });
  std::vector<Configuration> found;
  for (const Guess& guess : guesses) {
    if (found.size() < kCandidates && guess.clocks < 1.6 * guesses.front().clocks) {
      found.push_back(guess.configuration);
    }
  }
  return found;
}

std::string refuses(const Problem& p) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) {
    return "the device is not of compute capability 9.0";
  }
  if (p.element != Element::f16 && p.element != Element::bf16 && (p.element != Element::f32 || p.tf32 == 0)) {
    return "the element type is neither f16 nor bf16, nor f32 where TF32 is allowed";
  }
  if (!has_kernel(p.activation) || find(p, 0).function == nullptr) {
    return "it has no kernel with this activation";
  }
  const int64_t w_limit = p.gated != 0 ? kLimit / 2 : kLimit;
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.m > kLimit || p.n > w_limit || p.k > kLimit) {
    return "a size is 0 or does not fit in 32 bits";
  }
  if (p.weight_transposed != 0) {
    return "the weight's rows are not dense";
  }
  if (!aligned(p, p.x, p.x_stride) || !aligned(p, p.weight, p.weight_stride) ||
      !aligned(p, p.residual, p.residual_stride)) {
    return "x, weight or residual does not start, and step from row to row, at multiples of 16 bytes";
  }
  if (p.residual != nullptr && !is_written_by_map(p)) {
    return "TMA does not write y, and so loads no residual";
  }
  if (p.is_convolution() &&
      (!is_whole(p, p.windows.pixel_stride) || !is_whole(p, p.windows.row_stride) ||
       !is_whole(p, p.windows.image_stride) || !is_whole(p, p.weight_stride / p.windows.positions()))) {
    return "pixels, or positions of the weight, do not start at multiples of 16 bytes";
  }
  if (p.is_convolution() && !can_gather(p.windows)) {
    return "TMA does not support this padding, stride or dilation";
  }
  if (p.is_convolution() && p.windows.groups > 1 && p.n / p.windows.groups % 2 != 0) {
    return "groups have an odd number of columns";
  }
  if (reinterpret_cast<uintptr_t>(p.bias) % 4 != 0 || (p.gated != 0 && p.n % 2 != 0)) {
    return "bias, or its second half, is not aligned to 4 bytes";
  }
  return "";
}

void run(const Problem& p, const Configuration& c) {
  if (const std::string reason = refuses(p); !reason.empty()) {
    throw std::runtime_error("fuseconv::linear_act: backend sm90 refuses: " + reason);
  }
  const Kernel kernel = find(p, c.shape);
  if (kernel.function == nullptr) {
    throw std::runtime_error("fuseconv::linear_act: backend sm90 refuses: f32 has no kernel of this tile shape");
  }
  allow_shared_memory(kernel.function, kernel.shared_bytes);
  // A box of w is one block's part. If gated, a box contains only gates or only ups, even if one block copies both.
  const int halves = p.gated != 0 ? 2 : 1, w_parts = std::max(halves, c.cluster_m);
  const int x_rows = x_box_rows(p, kernel, c.cluster_n);
  const Windows& windows = p.windows;
  const int positions = p.is_convolution() ? windows.positions() : 1;
  const int depth = depth_of(p);
  const bool to_tf32 = p.element == Element::f32;
  CUtensorMap x_map = p.is_convolution()
                          ? pixel_map(p.element, p.x, p.m / (int64_t{windows.y_height} * windows.y_width), windows,
                                      x_rows, depth, to_tf32)
                          : tensor_map(p.element, p.x, p.m, p.k, p.x_stride, x_rows, depth, to_tf32);
  CUtensorMap w_map = tensor_map(p.element, p.weight, p.n * halves, positions, p.k / positions, p.weight_stride,
                                 kernel.w_rows / w_parts, depth, to_tf32);
  const int64_t groups = groups_of(p);
  const bool by_map = is_written_by_map(p);
  if (groups > 1 && c.cluster_n > 1) {
    throw std::runtime_error("fuseconv::linear_act: backend sm90 refuses: the blocks of a cluster have other groups");
  }
  CUtensorMap y_map = by_map ? tensor_map(p.element, p.y, p.m, p.n, p.y_stride, 16, kernel.chunk) : w_map;
  CUtensorMap residual_map =
      p.residual != nullptr ? tensor_map(p.element, p.residual, p.m, p.n, p.residual_stride, 16, kernel.chunk) : y_map;
  const auto parts = [](int64_t size, int part) { return static_cast<int>((size + part - 1) / part); };
  Arguments arguments{};
  arguments.bias = p.bias;
  arguments.y = by_map ? nullptr : p.y;
  arguments.y_stride = p.y_stride;
  arguments.residual_first = p.residual_first != 0;
  arguments.m = static_cast<int>(p.m);
  arguments.n = static_cast<int>(p.n);
  arguments.x_bytes = static_cast<uint32_t>(x_rows * c.cluster_n * kStepBytes);
  arguments.steps = static_cast<int>(steps_of(p));
  arguments.channels = static_cast<int>(p.k / positions);
  arguments.kernel_width = windows.kernel_width;
  arguments.is_convolution = p.is_convolution();
  if (p.is_convolution()) {
    arguments.first = FirstPixels::of(windows);
  }
  arguments.cluster_m = c.cluster_m;
  arguments.cluster_n = c.cluster_n;
  const int rows = parts(p.m, kernel.rows * c.cluster_m);
  const int columns = static_cast<int>(column_tiles(p, kernel.columns * c.cluster_n));
  arguments.has_groups = groups > 1;
  arguments.has_rows = has_rows(windows);
  arguments.group_tiles = Divisor::of(static_cast<int>(columns / groups) * c.cluster_n);
  arguments.group_columns = static_cast<int>(p.n / groups);
  const int height = std::min(c.strip, rows);
  if (static_cast<int64_t>(rows) * columns > kLimit || static_cast<int64_t>(height) * columns > kLimit) {
    throw std::runtime_error("fuseconv::linear_act: backend sm90 refuses: more than 2^31 tiles");
  }
  arguments.tiles = rows * columns;
  arguments.strips = parts(rows, height);
  arguments.strip = Divisor::of(height * columns);
  arguments.height = Divisor::of(height);
  arguments.last_height = Divisor::of(rows - (arguments.strips - 1) * height);
  arguments.pieces = pieces_of(p.activation);
  void* parameters[] = {&x_map, &w_map, &residual_map, &y_map, &arguments};

  const int blocks = c.cluster_m * c.cluster_n;
  const int clusters = std::min(device_attribute(cudaDevAttrMultiProcessorCount) / blocks, arguments.tiles);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = blocks;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
  launch.blockDim = dim3(kernel.threads);
  launch.dynamicSmemBytes = kernel.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(p.stream);
  launch.attrs = attributes;
  launch.numAttrs = c.early ? 2 : 1;
  cuda_check(cudaLaunchKernelExC(&launch, kernel.function, parameters), "launch of linear_kernel");
}

}  // namespace fuseconv::linear::sm90
