"""A captured program: what every step of the pipeline takes and returns."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from torch.export import ExportedProgram

from fuseconv.contract.spec import Contract, Dim
from fuseconv.program.original import Original


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        exported: flat calling convention: (tensor, ...) to (tensor, ...); placeholders are named as the contract says.
        contract: inputs and outputs; an integer input that indexes an embedding has its range.
        examples: one tensor per input.
        original: what it was captured from, on the device of the contract; None for what `fuse` captures.
        trainable: whether its parameters and buffers may change and gradients flow through it; a conversion's do not.
    """

    exported: ExportedProgram
    contract: Contract
    examples: tuple[torch.Tensor, ...]
    original: Original | None = None
    trainable: bool = False


def dim_symbols(program: Program) -> dict[str, sympy.Symbol]:
    """Returns the symbol by which the graph knows each of the contract's dims; of multiples, their quotient."""
    placeholders = {node.name: node for node in program.exported.graph.find_nodes(op="placeholder")}
    return {
        size.name: next(iter(symbol.node.expr.free_symbols))
        for spec, name in zip(program.contract.inputs, program.exported.graph_signature.user_inputs, strict=True)
        for size, symbol in zip(spec.shape, placeholders[str(name)].meta["val"].shape, strict=True)
        if isinstance(size, Dim) and isinstance(symbol, torch.SymInt)
    }
