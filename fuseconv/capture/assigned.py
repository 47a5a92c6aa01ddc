"""Writes to inputs that torch.export invents for a model that assigns a tensor to a buffer that was None."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind


def drop_stray_writes(exported: ExportedProgram) -> None:
    """Removes such writes from a program that was just captured.

    torch.export copies what is assigned to a buffer of the root module into the placeholder of that buffer. A buffer
    that was None has no placeholder, and torch 2.13 takes the one in its place: the first input of the user. It inserts
    the copy by itself, under a name that no op of a model gets.
    """
    inputs = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    copies = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    stray = [node for node in copies if node.name.startswith("copy__default") and node.args[0].name in inputs]
    for node in stray:
        exported.graph.erase_node(node)
    if stray:
        exported.graph_module.recompile()
