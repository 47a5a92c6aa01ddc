// The names of linear_act's CUDA backends, which its `backend` argument takes on every device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseconv::linear {

// cublaslt: one call with its epilogue. sm90: our fused kernel. cublas: cublaslt's GEMM, then one pass over y. aten:
// the host framework's own product, then one pass over y.
enum class Backend : int32_t { cublaslt, sm90, cublas, aten };
inline constexpr std::array<std::string_view, 4> kBackends = {"cublaslt", "sm90", "cublas", "aten"};

// One of kBackends, or "auto" for none in particular. Throws std::runtime_error otherwise.
std::optional<Backend> parse_backend(const char* op, std::string_view name);

}  // namespace fuseconv::linear
