// The names of the CUDA backends of linear layers, which linear_act's `backend` argument takes on every device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseconv::linear {

// cublaslt: one call with its epilogue. sm90: our fused kernel. cublas: cublaslt's GEMM, then one pass, in place or,
// when gated, from the problem's scratch to y. aten: the host framework's own product, then that pass. sm80:
// our fused kernel for Ampere and what came after. tf32x3: our fused kernel of f32 for Hopper's tensor cores.
enum class Backend : int32_t { cublaslt, sm90, cublas, aten, sm80, tf32x3 };
inline constexpr std::array<std::string_view, 6> kBackends = {"cublaslt", "sm90", "cublas", "aten", "sm80", "tf32x3"};

// One of kBackends, or "auto" for none in particular. Throws std::runtime_error otherwise.
std::optional<Backend> parse_backend(const char* op, std::string_view name);

}  // namespace fuseconv::linear
