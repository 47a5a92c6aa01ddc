"""Reads a torch.export archive as a list of ops, and extracts parts that return intermediate values."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from fuseconv.blaming.listing import NOTHING, Listing, Piece, Place, hashed
from fuseconv.graph.nodes import op_name
from fuseconv.program.graph_copy import returning, with_weights
from fuseconv.weights.store import like, weights_of
from fuseconv.weights.table import weights_of_artifact


class ExportListing(Listing):
    """The op calls of an exported program."""

    def __init__(self, path: Path, device: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            exported = torch.export.load(str(path))
        weights = weights_of_artifact(path, device) or {}
        self._exported = with_weights(
            exported, {name: like(exported.state_dict[name], one) for name, one in weights.items()}
        )
        self._nodes = [node for node in self._exported.graph.nodes if node.op == "call_function"]
        self._at = {node: at for at, node in enumerate(self._nodes)}

    @cached_property
    def ops(self) -> list[str]:
        """The names of the ops that the program calls, in order."""
        return [op_name(node.target) for node in self._nodes]

    @cached_property
    def returned(self) -> list[Place | None]:
        """The positions of the ops that compute the program's outputs. None for an input or a weight."""
        results: Any = self._exported.graph.output_node().args[0]
        return [self._place(one) for one in results]

    def operands(self, at: int) -> list[Place | None]:
        """Returns where each operand of a call is computed. None for an input or a weight."""
        return [self._place(one) for one in self._nodes[at].all_input_nodes]

    def arguments(self, at: int) -> list[str]:
        """Returns the non-tensor arguments of a call as strings, and its weights as names with hashes."""
        node, specs = self._nodes[at], self._exported.graph_signature.input_specs
        held = {spec.arg.name: str(spec.target) for spec in specs if spec.kind is not InputKind.USER_INPUT}
        tensors = self._exported.state_dict | self._exported.constants
        leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
        texts = [str(one) for one in leaves if not isinstance(one, Node)]
        weights = [held[one.name] for one in node.all_input_nodes if one.name in held]
        return [*texts, *(hashed(name, tensors[name]) for name in weights)]

    def cut(self, ends: Sequence[Place], given: Mapping[Place, torch.Tensor] = NOTHING) -> Piece:
        """Returns an archive that computes the values at `ends`, with its weights. The given values become inputs."""
        starts = {self._nodes[at].name: tensor for (at, _), tensor in given.items()}
        part, file = returning(self._exported, [self._nodes[at].name for at, _ in ends], starts), io.BytesIO()
        # Memory-mapped weights are views of one large storage, and torch.export.save would write the whole storage.
        owned = {name: like(one, one.detach().clone()) for name, one in weights_of(part).items()}
        torch.export.save(with_weights(part, owned), file)
        return Piece(file.getvalue(), tuple(starts.values()))

    def _place(self, node: Any) -> Place | None:
        """Returns the place of a node's value, or None if the node calls no op. The result index is always 0."""
        return (self._at[node], 0) if isinstance(node, Node) and node in self._at else None
