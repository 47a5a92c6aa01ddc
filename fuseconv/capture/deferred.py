"""Restrictions on sizes that always hold, though torch.export cannot tell: `8 * n == n * min(8, 8 * n)`.

torch.export refuses a dim for each guard that it cannot simplify. Asked to, it writes such guards into the program as
assertions instead; here each of them is proved by the ranges of the dims, and taken out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fuseconv.sizes.multiples import always

_UNTOLD = "satisfy the generated guard"
"""In what torch.export raises where it has found no simple form for a restriction."""

_DEFERRED = "Runtime assertion failed for expression"
"""What the message of an assertion begins with that torch.export has made of a guard."""


def export_proving(export: Callable[[bool], ExportedProgram]) -> ExportedProgram:
    """Exports; where torch.export gives up on a guard, exports again and proves the guard.

    Args:
        export: calls torch.export; its argument is whether guards become assertions.

    Raises:
        Exception: what `export` raised: without assertions, if one of them is not proved.
    """
    try:
        return export(False)
    except Exception as error:
        if _UNTOLD not in str(error):
            raise
        proved = _proved(export)
        if proved is None:
            raise
        return proved


def _proved(export: Callable[[bool], ExportedProgram]) -> ExportedProgram | None:
    try:
        exported = export(True)
    except Exception as error:  # noqa: BLE001 - what was raised without assertions says more
        logging.getLogger("fuseconv").debug("export with assertions: %s", error)
        return None
    if not all(_drop(exported, node) for node in _assertions(exported)):
        return None
    exported.graph_module.recompile()
    return exported


def _assertions(exported: ExportedProgram) -> list[Node]:
    calls = exported.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    return [node for node in calls if str(node.args[1]).startswith(_DEFERRED)]


def _drop(exported: ExportedProgram, assertion: Node) -> bool:
    """Takes an assertion out, and what was computed for it alone; returns False where it is not proved."""
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
