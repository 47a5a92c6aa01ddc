"""Exports recurrent layers for any number of steps.

torch.export keeps a recurrent layer as one op, but finds the shapes of its results by executing the loop over the
steps, which makes their number static. Within `any_number_of_steps`, the shapes are computed without the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import is_fake
from torch.fx import Graph

from fuseconv.graph.nodes import arguments

Kernel = Callable[..., tuple[Tensor, ...]]

aten = torch.ops.aten

LAYERS = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)


@contextmanager
def any_number_of_steps(ops: Collection[torch._ops.OpOverload] = LAYERS) -> Iterator[None]:
    """Within the block, the shapes of recurrent layers are computed without a loop over the steps.

    Args:
        ops: the ops of the layers. Ops that are decomposed within the block must not be among them.
    """
    decompositions = {op: decomposition_table[op] for op in ops}
    kernels = {op: dict(op.py_kernels) for op in ops}
    for op in ops:
        decomposition_table[op] = partial(_computed, decompositions[op], _SHAPES[op])
        _set(op, {key: partial(_computed, kernel, _SHAPES[op]) for key, kernel in kernels[op].items()})
    try:
        yield
    finally:
        for op in ops:
            decomposition_table[op] = decompositions[op]
            _set(op, kernels[op])


def _set(op: torch._ops.OpOverload, kernels: Mapping[DispatchKey, Kernel]) -> None:
    """Sets the kernels of an op that are written in Python."""
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def _computed(kernel: Kernel, shapes: Kernel, steps: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Returns the results of a recurrent layer, or only their shapes if the inputs have no values."""
    return (shapes if is_fake(steps) else kernel)(steps, *args)


def _lstm(steps: Tensor, states: list[Tensor], *settings: Any) -> tuple[Tensor, ...]:
    return _output(steps, states[0], *settings[-2:]), *map(torch.empty_like, states)


def _rnn(steps: Tensor, state: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    return _output(steps, state, *settings[-2:]), torch.empty_like(state)


_SHAPES: Mapping[torch._ops.OpOverload, Kernel] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _rnn,
    aten.rnn_tanh.input: _rnn,
    aten.rnn_relu.input: _rnn,
}
"""Maps each op to a function that returns tensors with the shapes of its results."""


def _output(steps: Tensor, state: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    """Returns a tensor with the shape and the strides of the results of all steps.

    Args:
        steps: the input: [L, B, C], or [B, L, C] if `batch_first` is set.
        state: the first state of each layer and direction, [layers * directions, B, H].
        bidirectional: whether there are two directions, whose results are concatenated.
        batch_first: whether the results have the shape [B, L, H * directions], or else [L, B, H * directions].
    """
    turned = steps.transpose(0, 1) if batch_first else steps
    results = steps.new_empty(*turned.shape[:2], state.shape[2] * (2 if bidirectional else 1))
    return results.transpose(0, 1) if batch_first else results


def why_not_unrolled(graph: Graph, kept: Collection[torch._ops.OpOverload] = ()) -> str | None:
    """Returns why a target cannot unroll the loops of a graph's recurrent layers over the steps, or None if it can.

    Args:
        graph: the graph of a program.
        kept: the ops of layers that the target does not unroll.
    """
    for op in set(LAYERS) - set(kept):
        for node in graph.find_nodes(op="call_function", target=op):
            given = arguments(node)
            steps = given["input"].meta["val"].shape[1 if given["batch_first"] else 0]
            if isinstance(steps, torch.SymInt):
                return f"the loop of {op} over the steps is unrolled, so their number must be static"
    return None
