"""Calls the original model as its users call it, to compare the captured program with it.

PyTorch has a fast path for `torch.nn.TransformerEncoder`. No exporter captures the fast path, and it returns zeros at
positions that a padding mask hides. Therefore it is disabled while the original model runs, as PyTorch itself disables
it during training.
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
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fuseconv.errors import UnsupportedError
from fuseconv.graph.attention_views import reshape_attention
from fuseconv.program.calling import arguments
from fuseconv.program.quiet import quiet_torch

Kind = Literal["module", "archive"]
"""The kind of an original: "module" for the user's module, "archive" for the program stored in an archive."""

STATE_AS_INPUT = "pass the state in as an input and return it as an output"
STATE_FIX = (
    f"{STATE_AS_INPUT}; if only the first call changes it, export the model after a first call, and convert the .pt2"
)
"""The fix in the errors for a model in eval mode that mutates its parameters or buffers."""


@dataclass(frozen=True)
class Original:
    """The original model, which is called with one tensor per input and returns a tuple of tensors.

    Attributes:
        module: the model in eval mode.
        call: for each input, its keyword, or "" if the input is positional. () if all inputs are positional.
        kind: "module" for the user's module, "archive" for the program stored in an archive.
        placed: parameters and buffers by name, used in place of the module's own. Set if the contract's device is not
            the device of the module, else empty.
    """

    module: torch.nn.Module
    call: tuple[str, ...] = ()
    kind: Kind = "module"
    placed: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the model on copies of the inputs, without gradients, and returns the tensors in its output.

        Restores the state of the CPU's random number generator afterwards.

        Raises:
            UnsupportedError: the model mutated its own parameters or buffers.
            Exception: any error that the model raises.
        """
        args, kwargs = arguments(self.call, [one.clone() for one in inputs])
        states = [*self.module.named_parameters(), *self.module.named_buffers()]
        states = [
            (name, state) for name, state in states if not state.is_inference()
        ]  # inference tensors have no version counter
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
                    f"the model mutates {name} when it is called, so that each call depends on earlier calls",
                    where=type(self.module).__name__,
                    fix=STATE_FIX,
                )
        return tuple(leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor))

    def on(self, device: str, exported: ExportedProgram) -> Original:
        """Returns the original model with its parameters and buffers on a device.

        Args:
            device: the device, such as "cuda".
            exported: the captured program, whose weights are already on the device. An archive or a TorchScript module
                is moved itself; any other module uses the weights of the program.
        """
        if isinstance(self.module, torch.jit.ScriptModule) or self.kind == "archive":
            moved = self.module.to(device)
            _move_constants(moved, device)
            return replace(self, module=moved)
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        names = [str(spec.target) for spec in exported.graph_signature.input_specs if spec.kind in kinds]
        tensors = {**exported.constants, **exported.state_dict}
        return replace(self, placed={name: tensors[name] for name in names})


def _move_constants(module: torch.nn.Module, device: str) -> None:
    """Moves what `Module.to` leaves: constants that are no buffers, and tensors that the graphs of an archive create.

    Such tensors are for example the numbers and the positions of a mask. Views of attention's result become reshapes,
    because its strides depend on the device. Changes the module and the graphs in place.
    """
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                setattr(part, name, value.to(device))
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.update_kwarg("device", torch.device(device))
            elif node.target is torch.ops.aten.to.device:
                node.update_arg(1, torch.device(device))
        reshape_attention(part.graph)
        part.recompile()


@contextmanager
def keeping_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Restores the buffers of a module when the block ends, including buffers that were None or did not exist.

    A model may store a computed value, such as a position bias, in a buffer that was None. While torch.export traces
    the model, this value is a fake tensor, which torch.export does not remove.
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
    """Disables the fast path of PyTorch's transformer modules within the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
