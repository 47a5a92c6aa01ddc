"""The recurrent layers that are written as one operator of ONNX, and those of them that ONNX or ONNX Runtime lacks."""

from __future__ import annotations

import torch

from fuseconv.graph.nodes import arguments
from fuseconv.graph.recurrent import why_not_unrolled
from fuseconv.program.captured import Program

WRITTEN = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
"""The recurrent layers that the exporter writes as one operator. It unrolls the loops of the others."""


def missing_layer(program: Program) -> str | None:
    """Describes the first recurrent layer of a program that cannot be written or run as ONNX, or returns None.

    These are layers whose loop over a dynamic number of steps would be unrolled, an LSTM with a projection, for which
    the exporter writes an invalid model, and on the CPU layers in f64.
    """
    graph = program.exported.graph
    for op in WRITTEN:
        for node in graph.find_nodes(op="call_function", target=op):
            given = arguments(node)
            if program.contract.device == "cpu" and given["input"].meta["val"].dtype == torch.float64:
                return f"ONNX Runtime on cpu has no kernel for {op} in float64: convert with --dtype f32"
            if op is torch.ops.aten.lstm.input:
                state, cell = (one.meta["val"].shape[-1] for one in given["hx"])
                if state != cell:
                    return f"the LSTM of ONNX has no projection, but {node.name} has one of size {state}"
    return why_not_unrolled(graph, WRITTEN)
