"""The original: the model as it was read, called as its users call it. What is captured of it is held against it.

PyTorch has a fast path of its own for `torch.nn.TransformerEncoder`, which no exporter captures and which gives zeros
where a padding mask hides; it is off here, as it is for a user who trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fuseconv.errors import UnsupportedError
from fuseconv.program.calling import arguments
from fuseconv.program.quiet import quiet_torch

Kind = Literal["module", "archive"]
"""What the original is: the module itself; or the program of an archive, where there is nothing else."""


@dataclass(frozen=True)
class Original:
    """A model and how it takes its inputs.

    Attributes:
        module: in eval mode.
        call: the keyword of each input, "" for one by position; () for all by position.
        kind: whether it is the module itself or an archive's program.
        placed: its parameters and buffers by name where they are on another device than the module's own.
    """

    module: torch.nn.Module
    call: tuple[str, ...] = ()
    kind: Kind = "module"
    placed: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs it on copies of its inputs and returns the tensors of its output, flat; numbers drawn are put back.

        Raises:
            UnsupportedError: it wrote to its own parameters or buffers.
            Exception: whatever the model raises.
        """
        args, kwargs = arguments(self.call, [one.clone() for one in inputs])
        states = [*self.module.named_parameters(), *self.module.named_buffers()]
        states = [(name, state) for name, state in states if not state.is_inference()]  # those have no versions
        before = [state._version for _, state in states]
        with torch.no_grad(), quiet_torch(), _slow_path(), torch.random.fork_rng(devices=[]):
            results = (
                functional_call(self.module, dict(self.placed), args, kwargs)
                if self.placed
                else self.module(*args, **kwargs)
            )
        for (name, state), version in zip(states, before, strict=True):
            if state._version != version:
                raise UnsupportedError(
                    f"the model mutates {name} when it is called, so each call depends on the calls before it",
                    where=type(self.module).__name__,
                    fix="convert in eval mode, or pass the state in as an input and return it as an output",
                )
        return tuple(leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor))

    def on(self, device: str, exported: ExportedProgram) -> Original:
        """Returns it on a device, with the parameters and buffers that its program has there."""
        if isinstance(self.module, torch.jit.ScriptModule) or self.kind == "archive":
            return replace(self, module=self.module.to(device))
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        names = [str(spec.target) for spec in exported.graph_signature.input_specs if spec.kind in kinds]
        tensors = {**exported.constants, **exported.state_dict}
        return replace(self, placed={name: tensors[name] for name in names})


@contextmanager
def keeping_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Gives a module its own buffers back when the block ends, also those that were None or not there.

    A model may keep what it computed, as the bias of its positions, in a buffer that has no tensor yet. What it
    computes while torch.export traces it is no tensor of numbers, and torch.export leaves it where the model put it.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    before = [dict(part._buffers) for part in parts]
    try:
        yield
    finally:
        for part, buffers in zip(parts, before, strict=True):
            part._buffers.clear()
            part._buffers.update(buffers)


@contextmanager
def _slow_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
