"""Compares a fused graph with the graph of torch.compile from which it was made, on the inputs of the first call.

As in `trial`, the reference is a run of the graph in float64, and random ops generate the same random numbers in all
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseconv.errors import ParityError
from fuseconv.fusing.trial import Outcome, outcome, wide
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.proof.difference import copied, same_draws


def check_graph(
    graph: GraphModule, traced: GraphModule, fused: GraphModule, inputs: Mapping[str, Any], rules: str
) -> None:
    """Verifies that a fused graph gives the same outputs, writes and gradients as the graph of torch.compile.

    Gradients are compared if they are enabled, for each input that requires grad.

    Args:
        graph: the graph of torch.compile.
        traced: the graph of ATen ops that was traced from it, which is run in float64.
        fused: the traced graph after the rewrite.
        inputs: the inputs by name, in the order of the placeholders of all three graphs. They are not mutated.
        rules: the names of the rules that were applied, for the error.

    Raises:
        ParityError: an output, a mutated input or a gradient differs.
    """
    original, actual = _run(graph, inputs), _run(fused, inputs)
    devices = {one.device.type for one in inputs.values() if isinstance(one, Tensor)}

    def in_float64(*given: Any) -> Sequence[Any]:
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            return interpret_in_float64(traced, given)

    fp64 = _run(in_float64, {name: _wide(one) if isinstance(one, Tensor) else one for name, one in inputs.items()})
    names = [*original, *(name for name in actual if name not in original)]
    differing = {name: reason for name in names if (reason := _difference(name, actual, original, fp64))}
    if differing:
        name, reason = next(iter(differing.items()))
        raise ParityError(
            f"{len(differing)} of {len(names)} values of the graph differ; first: {name}: {reason}",
            where=f"the rules applied: {rules}",
            fix='pass options={"rules": PATH} without the faulty rule',
        )


def _difference(name: str, actual: Outcome, original: Outcome, fp64: Outcome) -> str:
    """Returns how a value of the fused graph differs, or an empty string."""
    if name not in actual:
        return "the fused graph does not produce it"
    if name not in original or name not in fp64:
        return "only the fused graph produces it"
    row = compare(actual[name], original[name], fp64[name])
    return "" if row.ok else row.reason


def _run(call: Callable[..., Sequence[Any]], inputs: Mapping[str, Any]) -> Outcome:
    """Runs a graph on copies of its inputs, and returns its outputs, the inputs that it mutated, and the gradients."""
    leaves = {name: _leaf(one) if isinstance(one, Tensor) else one for name, one in inputs.items()}
    given = {name: copied(leaf) if isinstance(leaf, Tensor) else leaf for name, leaf in leaves.items()}
    with same_draws():
        outputs = call(*given.values())
        tensors = {name: one.detach() for name, one in given.items() if isinstance(one, Tensor)}
        mutated = {f"{name} after the call": one for name, one in tensors.items() if not torch.equal(one, leaves[name])}
        sources = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor) and leaf.requires_grad}
        return outcome(list(outputs), mutated, sources, [])


def _leaf(value: Tensor) -> Tensor:
    return copied(value.detach()).requires_grad_(value.requires_grad and torch.is_grad_enabled())


def _wide(value: Tensor) -> Tensor:
    return wide(value).requires_grad_(value.requires_grad)
