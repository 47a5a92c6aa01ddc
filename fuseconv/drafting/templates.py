"""Templates for the files of a drafted pack. The placeholders are replaced by names, types and op calls."""

README = """# {name}: an op drafted from a subgraph

| file | contents |
|---|---|
| `rules.json` | the rule that puts the op in place of the subgraph, after the default rules that it builds on |
| `ops.py` | loads the library, and says what the op computes, in PyTorch. It is code, and runs with `--trust code` |
| `{name}.cpp` | the schema and the kernel, on PyTorch's stable ABI: one library for every torch from 2.10 on |
| `aten.h` | calls of ATen ops from the kernel |
| `build.sh` | compiles `lib{name}.so` |
| `tests/` | the op against `ops.py` |

```
sh build.sh
python -m pytest tests
fuseconv rules check . --rule {rule} --trust code
fuseconv convert MODEL --rules . --trust code
```

The kernel is correct as it is: it calls the ops of the subgraph one by one. Write the fast one where `{name}.cpp` says
so, and run the tests again.
"""

BUILD = """#!/bin/sh
# Compiles the op library of this pack for every torch from 2.10 on.
set -e
cd "$(dirname "$0")"
torch=$(python -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
exec "${{CXX:-g++}}" -std=c++20 -O3 -Wall -Wextra -Werror -shared -fPIC -DTORCH_TARGET_VERSION=0x020a000000000000 \\
  -isystem "$torch/include" {name}.cpp -L"$torch/lib" -ltorch_cpu -o lib{name}.so
"""

OPS = '''"""Registers the op of the pack: loads the library, and says what the op computes."""

from pathlib import Path

import torch
from torch import Tensor

{namespaces}

torch.ops.load_library(str(Path(__file__).resolve().parent / "lib{name}.so"))


def reference({parameters}) -> {returns}:
    """The ops of the subgraph. The op must compute the same, with results of the same shapes, dtypes and strides."""
{body}
    return {results}


torch.library.register_fake("{namespace}::{name}")(reference)  # tensors without values: only shapes and strides
'''

KERNEL = """{head}
#include "aten.h"

namespace {{

using torch::stable::Tensor;

{returns} kernel({parameters}) {{
  // A kernel that computes the op in one pass goes here, for the operands that it supports, for example
  //
  //   if ({first}.is_cpu() && {first}.is_contiguous() && {first}.scalar_type() == aten::ScalarType::Float) {{
  //     const float* data = static_cast<const float*>({first}.const_data_ptr());
  //     ... return the result;
  //   }}
  //
  // All other operands take the ops of the subgraph, one by one.
{body}
  return {results};
}}

}}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT({namespace}, library) {{
  library.def("{schema}");
}}

// Composite: it calls ops, and is bound to no device. A kernel for one device alone has the key CPU or CUDA.
STABLE_TORCH_LIBRARY_IMPL({namespace}, CompositeExplicitAutograd, library) {{
  library.impl("{name}", TORCH_BOX(&kernel));
}}
"""

ATEN = """// Calls of ATen ops through the dispatcher, on PyTorch's stable ABI.
//
// The ABI passes tensors, integers, floats, bools, strings, dtypes and lists of these. It has no numbers that are an
// integer or a float (`Scalar` in a schema): `number` makes them tensors of rank 0, and `add` and `sub` take a double.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace aten {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Calls an op that has several results.
template <std::size_t results, class... Arguments>
std::array<Tensor, results> several(const char* op, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, std::max(results, sizeof...(Arguments))> stack{torch::stable::detail::from(arguments)...};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, overload, stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, results> values;
  for (std::size_t i = 0; i < results; ++i) values[i] = torch::stable::detail::to<Tensor>(stack[i]);
  return values;
}

// Calls an op that has one result: a tensor, or a list of tensors.
template <class Result = Tensor, class... Arguments>
Result call(const char* op, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments)> stack{torch::stable::detail::from(arguments)...};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Result>(stack[0]);
}

inline bool is_floating(const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  return dtype == ScalarType::Double || dtype == ScalarType::Float || dtype == ScalarType::Half ||
         dtype == ScalarType::BFloat16;
}

// A number next to a tensor, as a tensor of rank 0 that does not change the dtype of the result.
inline Tensor number(double value, const Tensor& beside) {
  return torch::stable::full({}, value, is_floating(beside) ? ScalarType::Double : ScalarType::Float);
}

inline Tensor number(std::int64_t value, const Tensor& beside) {
  if (is_floating(beside)) return number(static_cast<double>(value), beside);
  return torch::stable::full({}, static_cast<double>(value), ScalarType::Long);
}

inline Tensor sub(const Tensor& a, const Tensor& b, double alpha) { return torch::stable::subtract(a, b, alpha); }

inline Tensor add(const Tensor& a, const Tensor& b, double alpha) { return torch::stable::subtract(a, b, -alpha); }

inline Tensor mul(const Tensor& a, const Tensor& b) { return call("aten::mul", "Tensor", a, b); }

inline Tensor div(const Tensor& a, const Tensor& b) { return call("aten::div", "Tensor", a, b); }

inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call("aten::where", "self", condition, a, b);
}

inline Tensor clamp(const Tensor& x, const std::optional<Tensor>& least, const std::optional<Tensor>& most) {
  return call("aten::clamp", "Tensor", x, least, most);
}

inline Tensor to(const Tensor& x, ScalarType dtype) {
  return call("aten::to", "dtype", x, dtype, false, false, std::nullopt);
}

// Computes a function of a tensor. A half is a float meanwhile, as in the kernels of PyTorch.
template <class Function>
Tensor widened(const Tensor& x, const Function& function) {
  const ScalarType dtype = x.scalar_type();
  if (dtype != ScalarType::Half && dtype != ScalarType::BFloat16) return function(x);
  return to(function(to(x, ScalarType::Float)), dtype);
}

inline Tensor vector_norm(const Tensor& x, const std::optional<std::vector<std::int64_t>>& axes, bool keep) {
  return widened(x, [&](const Tensor& wide) {
    const std::optional<ScalarType> same;
    return call("aten::sqrt", "", call("aten::sum", "dim_IntList", mul(wide, wide), axes, keep, same));
  });
}

inline Tensor softplus(const Tensor& x, const Tensor& threshold) {
  return widened(x, [&](const Tensor& wide) {
    const Tensor soft = call("aten::log1p", "", call("aten::exp", "", wide));
    return where(call("aten::gt", "Tensor", wide, threshold), wide, soft);
  });
}

inline Tensor leaky_relu(const Tensor& x, const Tensor& slope) {
  return where(call("aten::gt", "Tensor", x, number(0.0, x)), x, mul(x, slope));
}

}  // namespace aten
"""

TEST = '''"""The op against its reference: dtypes, sizes, layouts, NaN and infinity; and its registration."""

import pathlib
import runpy

import pytest
import torch

reference = runpy.run_path(str(pathlib.Path(__file__).resolve().parent.parent / "ops.py"))["reference"]
op = torch.ops.{namespace}.{name}.default

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SIZES = {sizes}


def operands({arguments}):
    draw = torch.Generator().manual_seed(0)

    def floats(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    def integers(*shape):
        return torch.randint(0, 2, shape, generator=draw)

    return ({operands})


def check(*given):
    torch.testing.assert_close(op(*given), reference(*given), equal_nan=True)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_computes_its_reference(dtype, sizes):
    check(*operands(dtype, *sizes))


def test_any_layout():
    given = operands(torch.float64, *SIZES[0])
    for at, operand in enumerate(given):
        if isinstance(operand, torch.Tensor) and operand.dim() > 1:
            strided = operand.transpose(0, -1).contiguous().transpose(0, -1)
            check(*given[:at], strided, *given[at + 1 :])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_special_values(value):
    given = operands(torch.float64, *SIZES[0])
    for at, operand in enumerate(given):
        if isinstance(operand, torch.Tensor) and operand.is_floating_point() and operand.dim():
            check(*given[:at], operand.index_fill(-1, torch.tensor([0]), value), *given[at + 1 :])


def test_its_registration():
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(op, operands(torch.float32, *SIZES[0]), test_utils=checks)
'''
