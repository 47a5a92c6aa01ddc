"""Removes wrong writes to inputs, which torch.export adds if a model assigns a tensor to a buffer that was None."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind


def drop_stray_writes(exported: ExportedProgram) -> None:
    """Removes the wrong writes from a newly captured program, in place.

    If a model assigns a tensor to a buffer of the root module, torch.export copies the tensor into the buffer's
    placeholder. A buffer that was None has no placeholder, and torch 2.13 writes to the placeholder in its position
    instead: the first user input. The wrong writes are recognized by the name of the inserted copy_ node
    (`copy__default...`), which no op of a model gets.
    """
    inputs = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    copies = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    stray = [node for node in copies if node.name.startswith("copy__default") and node.args[0].name in inputs]
    for node in stray:
        exported.graph.erase_node(node)
    if stray:
        exported.graph_module.recompile()
