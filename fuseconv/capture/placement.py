"""Where a program runs: it is captured on the CPU and then placed on its device.

Under fake CUDA tensors a composite op chooses its kernel while it is captured, and what that kernel wants of sizes
becomes a guard: torch 2.11 captures an f32 attention with a mask only for sequences of 8k - 3 tokens, the padding that
one kernel gives the example's size. The CPU has no such kernels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.export.passes import move_to_device_pass

from fuseconv.program.captured import Program


def place(program: Program, device: str) -> Program:
    """Places a program's weights, constants and examples on a device; the given program is used up.

    Args:
        program: a captured program, on the CPU.
        device: `cpu` or `cuda`.
    """
    if device == program.contract.device:
        return program
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in program.exported.state_dict.items()}
    exported = move_to_device_pass(program.exported, device)
    for name, other in tied.items():
        exported.state_dict[name] = exported.state_dict[other]  # the pass makes a copy for each name
    contract = replace(program.contract, device=torch.device(device).type)
    original = None if program.original is None else program.original.on(device, exported)
    return Program(exported, contract, tuple(example.to(device) for example in program.examples), original)
