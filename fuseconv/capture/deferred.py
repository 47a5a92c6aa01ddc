"""Proves guards that torch.export cannot simplify but that hold for all sizes, such as `8 * n == n * min(8, 8 * n)`.

torch.export rejects a dim if it cannot simplify one of the dim's guards. With
`prefer_deferred_runtime_asserts_over_guards`, torch.export writes such guards into the program as assertions instead.
This module proves each assertion from the ranges of the dims, and removes the assertion. In such a program, the sizes
of one dim in several inputs are different symbols, which are made equal first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimConstraints

from fuseconv.sizes.guards import always

_NO_RANGE = "Cannot create Dim with inconsistent"
"""Part of the error message of torch.export if it fails while it writes the ranges that it suggests."""

_UNTOLD = ("satisfy the generated guard", _NO_RANGE)
"""Parts of torch.export's error messages for a constraint that it cannot simplify, or cannot suggest a range for."""

Sizes = Mapping[str, Sequence[SymNode]]
"""Maps the name of each dynamic dim to its sizes in a program, which are equal by the contract."""

_SUGGEST = "prettify_results"
"""The method of torch.export that writes the suggested ranges of dims into its error message."""

_DEFERRED = "Runtime assertion failed for expression"
"""The prefix of the message of an assertion that torch.export generates for a guard."""


class UnprovedError(Exception):
    """A program has a guard that is not known to hold for all sizes.

    Attributes:
        guard: the guard as text, with the names of the dims.
        dims: the names of the dims that occur in the guard.
        expression: the guard as text, with the symbols of torch.
    """

    def __init__(self, guard: str, dims: tuple[str, ...], expression: str) -> None:
        super().__init__(guard)
        self.guard = guard
        self.dims = dims
        self.expression = expression


def export_proving(
    export: Callable[[bool], ExportedProgram], equal: Callable[[ExportedProgram], Sizes]
) -> ExportedProgram:
    """Exports a model, and proves the guards that torch.export cannot simplify.

    If torch.export rejects a guard, exports again with guards as assertions, proves the assertions and removes them.

    Args:
        export: a function that calls torch.export. Its argument specifies whether guards become assertions.
        equal: a function that returns the sizes of each dim in a program.

    Raises:
        UnprovedError: an assertion cannot be proved, and the error of the export without assertions names no guard.
        Exception: the export fails, or an assertion cannot be proved. This is the error of the export without
            assertions, or of the one with assertions if the former names no guard.
    """
    try:
        return export(False)
    except Exception as error:
        if not any(part in str(error) for part in _UNTOLD):
            raise
        proved = _proved(export, equal)
        if isinstance(proved, ExportedProgram):
            return proved
        if _NO_RANGE in str(error):
            raise proved from error
        raise


def _proved(
    export: Callable[[bool], ExportedProgram], equal: Callable[[ExportedProgram], Sizes]
) -> ExportedProgram | Exception:
    """Exports with guards as assertions, and returns the program if all of these are proved and removed.

    Otherwise returns the error of the export, or the error for the first assertion that is not proved.
    """
    try:
        with _without_suggestions():
            exported = export(True)
    except Exception as error:  # noqa: BLE001 - the caller raises one of two errors
        logging.getLogger("fuseconv").debug("the export with assertions failed: %s", error)
        return error
    sizes = equal(exported)
    for first, *others in sizes.values():
        for other in others:
            _unify(first, other)
    for node in _assertions(exported):
        if not _drop(exported, node):
            return _unproved(node, sizes)
    exported.graph_module.recompile()
    return exported


def _unproved(assertion: Node, sizes: Sizes) -> UnprovedError:
    """Returns the error for an assertion that is not proved."""
    asserted = assertion.args[0]
    guard = asserted.meta["val"].node.expr if isinstance(asserted, Node) else sympy.sympify(asserted)
    names = {}
    for name, (first, *_) in sizes.items():
        step, symbol = first.expr.as_coeff_Mul()
        names[symbol] = sympy.Symbol(name, integer=True, positive=True) / step
    about = tuple(str(named.as_coeff_Mul()[1]) for symbol, named in names.items() if symbol in guard.free_symbols)
    return UnprovedError(str(guard.xreplace(names)), about, str(guard))


@contextmanager
def _without_suggestions() -> Iterator[None]:
    """Within the block, torch.export suggests no ranges, which it does even if it rejects none, and which may fail."""
    suggest = getattr(DimConstraints, _SUGGEST)
    setattr(DimConstraints, _SUGGEST, lambda *_, **__: "")
    try:
        yield
    finally:
        setattr(DimConstraints, _SUGGEST, suggest)


def _unify(first: SymNode, other: SymNode) -> None:
    """Replaces the symbol of a size by the symbol of an equal size, in all expressions of the program."""
    step, symbol = other.expr.as_coeff_Mul()
    if other.expr != first.expr and symbol.is_Symbol and other.shape_env is not None:
        other.shape_env._set_replacement(symbol, first.expr / step, "sizes of one dim")


def _assertions(exported: ExportedProgram) -> list[Node]:
    calls = exported.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    return [node for node in calls if str(node.args[1]).startswith(_DEFERRED)]


def _drop(exported: ExportedProgram, assertion: Node) -> bool:
    """Removes an assertion that can be proved, with the nodes that only it uses; returns False if it is not proved."""
    asserted = assertion.args[0]
    held = asserted.meta.get("val") if isinstance(asserted, Node) else asserted
    if isinstance(held, torch.SymBool) and not always(held.node.expr, exported.range_constraints):
        return False
    queue = [assertion]
    while queue:
        node = queue.pop()
        if not node.users and not node._erased and node.op == "call_function":
            queue += node.all_input_nodes
            exported.graph.erase_node(node)
    return True
