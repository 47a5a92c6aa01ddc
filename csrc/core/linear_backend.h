// The names of the CUDA backends of linear layers, which linear_act's `backend` argument takes on every device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseconv::linear {

// cublaslt: one call with its epilogue. sm90: our fused kernel for Hopper. cublas: cublaslt's GEMM, then one
// elementwise pass, in place or, if gated, from the problem's scratch to y. aten: the host framework's GEMM, then that
// pass. sm80: our fused kernel for Ampere and later. tf32x3: our fused f32 kernel for the tensor cores of Hopper.
enum class Backend : int32_t { cublaslt, sm90, cublas, aten, sm80, tf32x3 };
inline constexpr std::array<std::string_view, 6> kBackends = {"cublaslt", "sm90", "cublas", "aten", "sm80", "tf32x3"};

// One of kBackends, or "auto" for no particular one. Throws std::runtime_error otherwise.
std::optional<Backend> parse_backend(const char* op, std::string_view name);

}  // namespace fuseconv::linear
