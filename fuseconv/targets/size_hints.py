"""What Inductor is told of the symbols of a program: example values, by which it chooses tiles, and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fuseconv.graph.typical_sizes import ends, middle

if TYPE_CHECKING:
    import sympy
    from torch import SymInt
    from torch.export import ExportedProgram
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.value_ranges import ValueRanges

LARGEST = 1024
"""The largest example value of a symbol."""

LARGEST_PRODUCT = 1 << 14
"""The largest product of all example values. While Inductor tunes its kernels, it allocates tensors of these sizes."""


def widen_short_ranges(exported: ExportedProgram) -> None:
    """Lets each symbol of a loaded program that is at most 2 also be 3.

    The fake kernel of a convolution excludes a batch of 1 while cuDNN and oneDNN are enabled. Inductor's code is right
    for that batch, too. But if 2 is the only size left, the code has it as a constant. (torch 2.11 and 2.13)
    """
    environments = [size.node.shape_env for size in _sizes(exported)[:1]]
    for ranges in (exported.range_constraints, *(environment.var_to_range for environment in environments)):
        for symbol, one in ranges.items():
            if one.lower < one.upper == 2:
                ranges[symbol] = type(one)(one.lower, 3)


def set_size_hints(exported: ExportedProgram) -> None:
    """Gives each symbol of a loaded program a value in the middle of its range.

    A program is captured at small sizes, for which Inductor would generate kernels with small tiles. Also,
    torch.export.load keeps the value of `8*s` but does not derive that of `s`: Inductor then fails. (torch 2.10 to
    2.13, `GraphModuleDeserializer._parse_sym_expr`)
    """
    import sympy

    sizes = _sizes(exported)
    if not sizes:
        return
    environment: ShapeEnv = sizes[0].node.shape_env
    hints = _hints(environment)
    symbols = [symbol for size in sizes for symbol in sorted(size.node.expr.free_symbols, key=str)]
    ranges = {symbol: environment.var_to_range[symbol] for symbol in symbols}
    hints |= {symbol: sympy.Integer(value) for symbol, value in _values(ranges).items()}
    values = {symbol: value for symbol, value in hints.items() if symbol.is_Symbol}
    hints |= {expression: expression.xreplace(values) for expression in hints if not expression.is_Symbol}
    for size in sizes:
        size.node._hint = int(size.node.expr.xreplace(values))


def _sizes(exported: ExportedProgram) -> list[SymInt]:
    """Returns the symbolic sizes, strides and offsets of the program's inputs.

    torch gives some constants symbolic sizes too, whose values are the sizes of the constants.
    """
    import torch

    inputs = set(exported.graph_signature.user_inputs)
    tensors = [node.meta["val"] for node in exported.graph.find_nodes(op="placeholder") if node.name in inputs]
    numbers = [one for tensor in tensors for one in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    return [one for one in numbers if isinstance(one, torch.SymInt)]


def _values(ranges: Mapping[sympy.Symbol, ValueRanges[Any]]) -> dict[sympy.Symbol, int]:
    """Returns the values: the middle of each range up to `LARGEST`, halved until the product is small enough.

    They are distinct if the ranges allow it, so that no two sizes are equal by coincidence, and not 0 or 1.
    """
    bounds = {symbol: ends(one, LARGEST) for symbol, one in ranges.items()}
    values = {symbol: middle(*pair) for symbol, pair in bounds.items()}
    while math.prod(values.values()) > LARGEST_PRODUCT:
        smaller = {symbol: max(bounds[symbol][0], value // 2) for symbol, value in values.items()}
        if smaller == values:
            break
        largest = max((symbol for symbol in values if smaller[symbol] < values[symbol]), key=values.__getitem__)
        values[largest] = smaller[largest]
    taken: set[int] = set()
    for symbol, (_, high) in bounds.items():
        values[symbol] = next((one for one in range(values[symbol], high + 1) if one not in taken), values[symbol])
        taken.add(values[symbol])
    return values


def _hints(environment: ShapeEnv) -> dict[Any, Any]:
    """Returns the example values of an environment. torch 2.10 stores them under another name."""
    held = vars(environment)
    found: dict[Any, Any] = held["backed_var_to_val" if "backed_var_to_val" in held else "var_to_val"]
    return found
