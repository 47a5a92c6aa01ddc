// An op is a struct with these members:
//
//   name, schema                                the schema has torch's syntax
//   Args                                        a field per argument of the schema, in order
//   outputs(args)                               checks the arguments and returns a Spec per result
//   run<Target>(host, args, results...)         computes the results on the CPU or on CUDA
//   in_onnx_runtime                             optional: false for an op that ONNX Runtime's libraries leave out
//
// A binding creates the Args of a call from objects that convert to the type of any field: In, InI64,
// std::optional<In>, int64_t, double, bool, std::string_view, std::span<const int64_t>.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "core/host.h"
#include "core/isa.h"
#include "core/tensor_view.h"

namespace fuseconv {

// Targets: an instruction set of the CPU, or CUDA.
template <class Isa>
struct CpuTarget {
  using Host = CpuHost;
};
struct CudaTarget {
  using Host = CudaHost;
};

// Returns the number of arguments in a schema.
constexpr size_t argument_count(std::string_view schema) {
  size_t commas = 0;
  for (const char c : schema.substr(0, schema.find(") ->"))) {
    commas += c == ',';
  }
  return commas + 1;
}
template <class Op>
inline constexpr size_t kArguments = argument_count(Op::schema);

template <class Op>
inline constexpr size_t kResults = std::tuple_size_v<decltype(Op::outputs(std::declval<const typename Op::Args&>()))>;

// Creates the Args of a call. `make(i)` returns an object for argument i, as described above. Arguments are created in
// order.
template <class Op, class Make>
typename Op::Args make_args(Make make) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return typename Op::Args{make(I)...};
  }(std::make_index_sequence<kArguments<Op>>());
}

// Calls Op::run. It is compiled once per target, in the file that CMake generates from ops/instantiation.in.
template <class Op, class Target>
struct OpKernel {
  static void run(typename Target::Host& host, const typename Op::Args& args,
                  const std::array<Out, kResults<Op>>& results);
};

}  // namespace fuseconv
