// y[n, c, s] = act((x[n, c, s] - m[n, g]) / sqrt(v[n, g] + eps) * weight[c] + bias[c]),  g = c / (C / groups)
//
// m is the mean of the C / groups * S elements of group g of image n, and v is the mean of squared distances to m (Wu
// and He, "Group Normalization", 2018). Computes in f32 for f32, f16 and bf16, and in f64 for f64. x may have any
// strides.
#pragma once

#include <optional>

#include "core/activation.h"
#include "core/host.h"
#include "core/layout.h"

namespace fuseconv {

struct GroupNorm {
  In x;
  int64_t groups;
  std::optional<In> weight;
  std::optional<In> bias;
  double eps;
  Activation activation;
  Out y;  // channels last if x is, otherwise contiguous
};

inline void check_group_norm(const char* op, In x, int64_t groups, const std::optional<In>& weight,
                             const std::optional<In>& bias) {
  common_dtype(op, {{"x", x}});
  // The kernels split the channels into two dims, so x must have fewer than kMaxRank dims.
  check(x.rank >= 2 && x.rank < kMaxRank, "fuseconv::", op, ": x must have the shape [N, C, ...], of at most ",
        kMaxRank - 1, " dims, but has ", SizesText{x});
  const int64_t channels = x.sizes[1];
  check(groups > 0 && channels % groups == 0, "fuseconv::", op, ": groups must divide the ", channels,
        " channels of x, but is ", groups);
  for (const auto& [name, vector] : {std::pair{"weight", weight}, {"bias", bias}}) {
    if (vector) {
      common_dtype(op, {{"x", x}, {name, *vector}});
      check(vector->rank == 1 && vector->sizes[0] == channels, "fuseconv::", op, ": ", name,
            " must have one element for each of the ", channels, " channels of x, but has the shape ",
            SizesText{*vector});
    }
  }
}

inline namespace FUSECONV_ISA {

// Views a tensor [N, C, ...] as [N, groups, C / groups, ...].
inline Spec grouped(In x, int64_t groups) {
  Spec view{x.dtype, x.rank + 1, {}, {}};
  for (int axis = 0; axis < x.rank; ++axis) {
    view.sizes[axis + (axis > 0)] = x.sizes[axis];
    view.strides[axis + (axis > 0)] = x.strides[axis];
  }
  view.sizes[1] = groups;
  view.sizes[2] = x.sizes[1] / groups;
  view.strides[1] = x.strides[1] * view.sizes[2];
  return view;
}

void group_norm(CpuHost& host, const GroupNorm& norm);

}  // namespace FUSECONV_ISA

namespace cuda {

void group_norm(CudaHost& host, const GroupNorm& norm);

// Does the same for a channels-last x.
void group_norm_channels_last(CudaHost& host, const GroupNorm& norm);

}  // namespace cuda
}  // namespace fuseconv
