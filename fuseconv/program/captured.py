"""Defines `Program`, the captured program that each step of the pipeline passes to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.program.original import Original


@dataclass(frozen=True)
class Program:
    """A captured program, its contract, and the original model.

    Attributes:
        exported: the program. It accepts and returns a flat list of tensors. Its placeholders are named like the inputs
            of the contract.
        contract: the declared inputs and outputs. An integer input that indexes an embedding has a range of values. In
            `fuse`, the contract contains only the device, because a call of `fuse` may pass constants and sizes such as
            `2 * dim + 1`, which a contract cannot express; `fusing.call` defines the valid arguments instead.
        examples: one example tensor per input.
        original: the original model, on the device of the contract. None in `fuse`.
        trainable: whether the parameters and buffers may change after the conversion and gradients flow through the
            program. True only in `fuse`.
        unusual: sizes of the dims at which torch.export assumed something that does not hold. The program was compared
            with the original there, and every artifact must be.
    """

    exported: ExportedProgram
    contract: Contract
    examples: tuple[torch.Tensor, ...]
    original: Original | None = None
    trainable: bool = False
    unusual: tuple[Mapping[str, int], ...] = ()

    @cached_property
    def results(self) -> dict[Any, Any]:
        """A cache of what ops return on the program's fake values: see `Workspace.run`. All workspaces share it."""
        return {}


def dim_symbols(program: Program) -> dict[str, sympy.Symbol]:
    """Returns the symbolic size in the graph for each dim of the contract, by the dim's name.

    For a dim with a step, the value of the symbol is the dim's size divided by the step.
    """
    placeholders = {node.name: node for node in program.exported.graph.find_nodes(op="placeholder")}
    return {
        size.name: next(iter(symbol.node.expr.free_symbols))
        for spec, name in zip(program.contract.inputs, program.exported.graph_signature.user_inputs, strict=True)
        for size, symbol in zip(spec.shape, placeholders[str(name)].meta["val"].shape, strict=True)
        if isinstance(size, Dim) and isinstance(symbol, torch.SymInt)
    }
