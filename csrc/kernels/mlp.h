// Computes two or three narrow linear layers in sequence: h_i = act_i(h_(i-1) weight_i^T + bias_i).
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"

namespace fuseconv {

inline constexpr int64_t kMaxMlpWidth = 256;  // the maximum width of x and of every layer

struct MlpLayer {
  In weight;
  std::optional<In> bias;
  Activation activation;
};

struct MlpLayers {
  int count;  // 2 or 3
  MlpLayer at[3];
};

inline namespace FUSECONV_ISA {

void mlp(CpuHost& host, const MlpLayers& layers, In x, Out y);

}  // namespace FUSECONV_ISA

namespace cuda {

void mlp(CudaHost& host, const MlpLayers& layers, In x, Out y);

}  // namespace cuda
}  // namespace fuseconv
