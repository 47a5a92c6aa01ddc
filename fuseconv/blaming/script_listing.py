"""Reads a TorchScript module as a list of ops, and extracts functions that return intermediate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fuseconv.blaming.listing import NOTHING, Listing, Piece, Place, hashed
from fuseconv.targets.artifact import attach
from fuseconv.targets.script_module import quiet
from fuseconv.weights.table import weights_of_artifact

_PLUMBING = ("prim::Constant", "prim::GetAttr", "prim::ListConstruct", "prim::TupleConstruct")
"""The kinds of nodes that only assemble the arguments of ops or the returned tuple."""


class ScriptListing(Listing):
    """The nodes of a TorchScript graph."""

    def __init__(self, path: Path, device: str) -> None:
        with quiet():
            module: Any = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        if (weights := weights_of_artifact(path, device)) is not None:
            attach(module, weights, path)
        lowered: Any = torch._C._jit_pass_lower_graph(module.graph.copy(), module._c)
        self._graph, self._weights = lowered
        names = {tensor.data_ptr(): name for name, tensor in module.named_buffers() if tensor.numel()}
        self._names = [names.get(one.data_ptr(), f"weight {at}") for at, one in enumerate(self._weights)]
        inputs = [value.debugName() for value in self._graph.inputs()]
        self._held = dict(zip(inputs[len(inputs) - len(self._weights) :], self._weights, strict=True))
        self._nodes = _ops(self._graph)
        self._places = {
            value.debugName(): (at, result)
            for at, node in enumerate(self._nodes)
            for result, value in enumerate(node.outputs())
        }

    @cached_property
    def ops(self) -> list[str]:
        """The kinds of the nodes, in order."""
        return [node.kind() for node in self._nodes]

    @cached_property
    def returned(self) -> list[Place | None]:
        """The place of each element of the returned tuple. None for an input, a constant or a weight."""
        (returned,) = self._graph.outputs()
        return [self._places.get(value.debugName()) for value in returned.node().inputs()]

    def operands(self, at: int) -> list[Place | None]:
        """Returns where each input of a node is computed. None for an input of the module, a constant or a weight."""
        return [self._places.get(value.debugName()) for value in self._nodes[at].inputs()]

    def arguments(self, at: int) -> list[str]:
        """Returns the constants and the weights among a node's inputs, as strings."""
        given = [value for value in self._nodes[at].inputs() if value.debugName() not in self._places]
        return [self._text(value) for value in given]

    def cut(self, ends: Sequence[Place], given: Mapping[Place, torch.Tensor] = NOTHING) -> Piece:
        """Returns a function of the inputs, weights and given values that computes the values at `ends`."""
        graph = self._graph.copy()
        nodes = _ops(graph)
        for at, result in given:
            value = list(nodes[at].outputs())[result]
            value.replaceAllUsesWith(graph.addInput().setType(value.type()))
        values = [list(nodes[at].outputs())[result] for at, result in ends]
        returned = graph.create("prim::TupleConstruct", values, 1)
        graph.appendNode(returned)
        returned.output().setType(torch._C.TupleType([value.type() for value in values]))
        graph.eraseOutput(0)
        graph.registerOutput(returned.output())
        torch._C._jit_pass_dce(graph)
        inputs, used = list(graph.inputs()), list[torch.Tensor]()
        first = len(inputs) - len(given) - len(self._weights)
        for at, weight in reversed(list(enumerate(self._weights, first))):
            if inputs[at].uses():
                used.insert(0, weight)
            else:
                graph.eraseInput(at)
        with quiet():
            function: Any = torch._C._create_function_from_graph("forward", graph)
            return Piece(function.save_to_buffer(), (*used, *given.values()))

    def _text(self, value: Any) -> str:
        name, node = value.debugName(), value.node()
        if name in self._held:
            return hashed(self._names[list(self._held).index(name)], self._held[name])
        if node.kind() in ("prim::ListConstruct", "prim::TupleConstruct"):
            return str([self._text(one) for one in node.inputs()])
        return str(value.toIValue()) if node.kind() == "prim::Constant" else "an input"


def _ops(graph: Any) -> list[Any]:
    return [node for node in graph.nodes() if node.kind() not in _PLUMBING]
