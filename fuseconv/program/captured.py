"""A captured program, which each step of the pipeline passes to the next."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from torch.export import ExportedProgram

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.program.original import Original


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        exported: the program in the flat calling convention: tensors in, tensors out. Placeholders have the names of
            the contract.
        contract: the declared inputs and outputs. Integer inputs that index an embedding have a range. In `fuse`, the
            contract contains only the device, because a call may pass constants and sizes such as `2 * dim + 1`, which
            a contract cannot express. `fusing.call` defines what such a call must pass.
        examples: one tensor per input.
        original: the model that was captured, on the device of the contract. None in `fuse`.
        trainable: whether the program's parameters and buffers may change and gradients flow through the program. False
            in a conversion.
    """

    exported: ExportedProgram
    contract: Contract
    examples: tuple[torch.Tensor, ...]
    original: Original | None = None
    trainable: bool = False


def dim_symbols(program: Program) -> dict[str, sympy.Symbol]:
    """Returns the graph's symbol for each dim of the contract. For a dim with a step, the symbol means dim / step."""
    placeholders = {node.name: node for node in program.exported.graph.find_nodes(op="placeholder")}
    return {
        size.name: next(iter(symbol.node.expr.free_symbols))
        for spec, name in zip(program.contract.inputs, program.exported.graph_signature.user_inputs, strict=True)
        for size, symbol in zip(spec.shape, placeholders[str(name)].meta["val"].shape, strict=True)
        if isinstance(size, Dim) and isinstance(symbol, torch.SymInt)
    }
