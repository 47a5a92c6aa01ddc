"""Proves guards that torch.export cannot simplify but that hold for all sizes, such as `8 * n == n * min(8, 8 * n)`.

torch.export rejects a dim if it cannot simplify one of the dim's guards. With
`prefer_deferred_runtime_asserts_over_guards`, torch.export writes such guards into the program as assertions instead.
This module proves each assertion from the ranges of the dims, and removes the assertion. In such a program, the sizes
of one dim in several inputs are different symbols, which are made equal first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimConstraints

from fuseconv.sizes.guards import always

_UNTOLD = ("satisfy the generated guard", "Cannot create Dim with inconsistent")
"""Parts of torch.export's error messages for a constraint that it cannot simplify, or cannot suggest a range for."""

_SUGGEST = "prettify_results"
"""The method of torch.export that writes the suggested ranges of dims into its error message."""

_DEFERRED = "Runtime assertion failed for expression"
"""The prefix of the message of an assertion that torch.export generates for a guard."""


def export_proving(
    export: Callable[[bool], ExportedProgram], equal: Callable[[ExportedProgram], Iterable[Sequence[SymNode]]]
) -> ExportedProgram:
    """Exports a model, and proves the guards that torch.export cannot simplify.

    If torch.export rejects a guard, exports again with guards as assertions, proves the assertions and removes them.

    Args:
        export: a function that calls torch.export. Its argument specifies whether guards become assertions.
        equal: a function that returns the groups of sizes in a program that are equal by the contract.

    Raises:
        Exception: the export fails, or an assertion cannot be proved. In both cases, this is the error of the export
            without assertions.
    """
    try:
        return export(False)
    except Exception as error:
        if not any(part in str(error) for part in _UNTOLD):
            raise
        proved = _proved(export, equal)
        if proved is None:
            raise
        return proved


def _proved(
    export: Callable[[bool], ExportedProgram], equal: Callable[[ExportedProgram], Iterable[Sequence[SymNode]]]
) -> ExportedProgram | None:
    """Exports with guards as assertions, and returns the program if all of these are proved and removed, else None."""
    try:
        with _without_suggestions():
            exported = export(True)
    except Exception as error:  # noqa: BLE001 - the error without assertions is more helpful
        logging.getLogger("fuseconv").debug("the export with assertions failed: %s", error)
        return None
    for first, *others in equal(exported):
        for other in others:
            _unify(first, other)
    if not all(_drop(exported, node) for node in _assertions(exported)):
        return None
    exported.graph_module.recompile()
    return exported


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
