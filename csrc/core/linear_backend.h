// The names of the CUDA backends of linear layers. linear_act's `backend` argument accepts all of them but `cudnn`, on
// every device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseconv::linear {

// cublaslt: one cuBLASLt call with its epilogue. sm90: fuseconv's fused kernel for Hopper. cublas: cublaslt's GEMM
// followed by one elementwise pass, which works in place or, for a gated layer, reads the problem's scratch buffer and
// writes y. aten: the host framework's GEMM followed by the same pass. sm80: fuseconv's fused kernel for Ampere and
// later. tf32x3: fuseconv's fused f32 kernel for Hopper's Tensor Cores. cudnn: only for a convolution, cuDNN's kernel
// followed by an elementwise pass for what that kernel does not compute.
enum class Backend : int32_t { cublaslt, sm90, cublas, aten, sm80, tf32x3, cudnn };
inline constexpr std::array<std::string_view, 7> kBackends = {"cublaslt", "sm90",   "cublas", "aten",
                                                              "sm80",     "tf32x3", "cudnn"};

// Returns the backend of that name, or std::nullopt for "auto". Throws std::runtime_error for a name that is not one of
// a linear layer's backends.
std::optional<Backend> parse_backend(const char* op, std::string_view name);

}  // namespace fuseconv::linear
