"""Checks that a replacement in a trainable program passes gradients to the same operands as the matched nodes.

The check runs the matched nodes and the replacement on fake tensors that require gradients, and follows the autograd
graph of each result back to the operands. It detects, for example, a rule that drops a `detach`, whatever op detaches
the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fuseconv.graph.all_sizes import GuardError, all_sizes
from fuseconv.matching.graph import Workspace, map_nodes
from fuseconv.matching.replacement import Made, Replacement
from fuseconv.rulebook.refused import Refused


def check_gradients(
    matched: frozenset[Node],
    operands: frozenset[Node],
    results: Mapping[str, Node],
    replacement: Replacement,
    workspace: Workspace,
) -> None:
    """Checks that each result passes gradients to the same operands before and after the replacement.

    Args:
        matched: the nodes that the replacement replaces.
        operands: the nodes outside the match whose values the matched nodes use.
        results: maps each replaced name to the node whose value is replaced.
        replacement: the ops to insert, with their fake results.
        workspace: the graph that contains the matched nodes.

    Raises:
        Refused: a gradient reaches an additional operand, or no longer reaches an operand.
    """
    if workspace.mode is None:
        return
    outside = (operands | {operand for node in matched for operand in node.all_input_nodes}) - matched
    values: dict[Node, Any] = {node: node.meta.get("val") for node in outside}
    try:
        with all_sizes(workspace.mode), torch.enable_grad():
            leaves = {node: _leaf(value) for node, value in values.items() if _differentiable(value)}
            before = _matched(matched, values | _copies(leaves))
            after = _replaced(replacement, values | _copies(leaves))
            for name, node in results.items():
                changed = _reached(before[node], leaves) ^ _reached(after[name], leaves)
                for operand in sorted(changed):
                    if workspace.may_require_grad(operand):
                        raise _refusal(node, operand, _reached(before[node], leaves))
    except GuardError as problem:
        raise Refused("gradients that are valid for all sizes", str(problem)) from None
    except RuntimeError as problem:
        raise Refused(
            "ops that autograd can differentiate", str(problem).strip().split("\n")[0] or type(problem).__name__
        ) from None


def _refusal(result: Node, operand: Node, reached: frozenset[Node]) -> Refused:
    words = ("to reach", "that it does not") if operand in reached else ("not to reach", "that it does")
    return Refused(f"the gradient of {result.name} {words[0]} {operand.name}", words[1])


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _leaf(value: Tensor) -> Tensor:
    # The leaf has its own memory, because a fake copy of a slice would need the size of the whole tensor.
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device, requires_grad=True)


def _copies(leaves: Mapping[Node, Tensor]) -> dict[Node, Any]:
    """Returns differentiable copies of the leaves. Ops may mutate the copies; autograd forbids this for leaves."""
    return {node: leaf * 1 for node, leaf in leaves.items()}


def _matched(matched: frozenset[Node], values: dict[Node, Any]) -> dict[Node, Any]:
    for node in sorted(matched):
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda operand: values[operand])
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload, or getitem
    return values


def _replaced(replacement: Replacement, values: dict[Node, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}

    def value(argument: Any) -> Any:
        if isinstance(argument, Made):
            return made[argument.name]
        if isinstance(argument, list | tuple):
            return [value(item) for item in argument]
        return map_nodes(argument, lambda node: values[node])

    for instruction in replacement.instructions:
        kwargs = {name: value(argument) for name, argument in instruction.kwargs.items()}
        result = instruction.op(*(value(argument) for argument in instruction.args), **kwargs)
        made |= zip(instruction.targets, result if instruction.unpacks else [result], strict=False)
    return made | {name: value(same) for name, same in replacement.same.items()}


def _reached(result: Any, leaves: Mapping[Node, Tensor]) -> frozenset[Node]:
    """Returns the operands to which a backward pass from a result would propagate gradients."""
    start = getattr(result, "grad_fn", None)
    seen, queue, found = {start}, [start], set()
    while queue:
        function = queue.pop()
        if function is None:
            continue
        found.add(id(getattr(function, "variable", None)))
        following = [before for before, _ in function.next_functions if before not in seen]
        seen.update(following)
        queue.extend(following)
    return frozenset(node for node, leaf in leaves.items() if id(leaf) in found)
