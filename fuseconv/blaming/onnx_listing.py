"""Reads an ONNX model as a list of ops, and extracts parts whose graph outputs are intermediate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from fuseconv.blaming.listing import NOTHING, Listing, Piece, Place, hashed
from fuseconv.targets.onnx_session import element_types


class OnnxListing(Listing):
    """The nodes of an ONNX model."""

    def __init__(self, path: Path, device: str) -> None:  # noqa: ARG002 - a file is read on the host
        self._model = onnx.load(path)
        self._weights = {one.name: one for one in self._model.graph.initializer}
        self._bodies = {
            (one.domain, one.name, one.overload): b"".join(node.SerializeToString() for node in one.node)
            for one in self._model.functions
        }
        self._places = {
            name: (at, result)
            for at, node in enumerate(self._model.graph.node)
            for result, name in enumerate(node.output)
        }

    @cached_property
    def ops(self) -> list[str]:
        """The op types of the nodes, in order."""
        return [node.op_type for node in self._model.graph.node]

    @cached_property
    def returned(self) -> list[Place | None]:
        """The place of the node result that each graph output returns. None for a graph input or an initializer."""
        return [self._places.get(value.name) for value in self._model.graph.output]

    def operands(self, at: int) -> list[Place | None]:
        """Returns where each input of a node is computed. None for a graph input or an initializer."""
        return [self._places.get(name) for name in self._model.graph.node[at].input]

    def arguments(self, at: int) -> list[str]:
        """Returns a node's attributes and weights as strings, and a hash of the body if it calls an ONNX function."""
        node = self._model.graph.node[at]
        attributes = sorted(f"{one.name} {_value(one)}" for one in node.attribute)
        weights = [name for name in node.input if name in self._weights]
        body = self._bodies.get((node.domain, node.op_type, node.overload))
        bodies = [] if body is None else [f"body with sha256 {sha256(body).hexdigest()[:12]}"]
        return [*attributes, *(hashed(name, _tensor(self._weights[name])) for name in weights), *bodies]

    def cut(self, ends: Sequence[Place], given: Mapping[Place, torch.Tensor] = NOTHING) -> Piece:
        """Returns a model that computes the values at `ends`, with its weights. The given values are graph inputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        names = [self._name(place) for place in ends]
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
        kinds, starts = element_types(), {self._name(place): tensor for place, tensor in given.items()}
        model.graph.input.extend(
            onnx.helper.make_tensor_value_info(name, kinds[one.dtype], list(one.shape)) for name, one in starts.items()
        )
        for node in model.graph.node:  # rename only the given outputs: the node's other outputs may still be needed
            node.output[:] = [f"{name}_computed" if name in starts else name for name in node.output]
        used: set[str] = set(names)
        for at in reversed(range(len(model.graph.node))):
            if used.isdisjoint(model.graph.node[at].output):
                del model.graph.node[at]
            else:
                used.update(model.graph.node[at].input)
        kept = [one for one in model.graph.initializer if one.name in used]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        return Piece(model.SerializeToString(), tuple(starts.values()))

    def _name(self, place: Place) -> str:
        return str(self._model.graph.node[place[0]].output[place[1]])


def _value(attribute: Any) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    return f"{numpy_helper.to_array(value).tolist()}" if isinstance(value, onnx.TensorProto) else f"{value!r}"


def _tensor(initializer: Any) -> torch.Tensor:
    array = numpy_helper.to_array(initializer)
    return torch.from_numpy(array.view("uint8").copy() if array.ndim else array.reshape(1).view("uint8").copy())
