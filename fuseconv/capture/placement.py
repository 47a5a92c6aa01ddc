"""Moves a captured program to the device for which the model is converted.

A program is always captured on the CPU. If it were captured with fake CUDA tensors, composite ops would select their
CUDA kernels during capture, and the size requirements of these kernels would become guards. For example, torch 2.11
captures f32 attention with a mask only for sequences of 8k - 3 tokens, because one kernel pads the example that way.
The CPU has no such kernels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule

from fuseconv.graph.attention_views import reshape_attention
from fuseconv.program.captured import Program


def place(program: Program, device: str) -> Program:
    """Returns a program whose weights, constants and examples are on a device.

    The given program must not be used afterwards.

    Args:
        program: the captured program, whose tensors are on the CPU.
        device: `cpu` or `cuda`.
    """
    if device == program.contract.device:
        return program
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in program.exported.state_dict.items()}
    exported = move_to_device_pass(program.exported, device)
    _drop_device_checks(exported)
    reshape_attention(exported.graph)
    for name, other in tied.items():
        exported.state_dict[name] = exported.state_dict[other]  # the pass copies a tensor once per name
    contract = replace(program.contract, device=torch.device(device).type)
    original = None if program.original is None else program.original.on(device, exported)
    examples = tuple(example.to(device) for example in program.examples)
    return replace(program, exported=exported, contract=contract, examples=examples, original=original)


def _drop_device_checks(exported: ExportedProgram) -> None:
    """Removes the device from the graph's tensor assertions, which would expect `cuda` for tensors on `cuda:0`."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                node.kwargs = {name: value for name, value in node.kwargs.items() if name != "device"}
