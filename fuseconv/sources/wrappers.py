"""Removes the wrappers of PyTorch that only call the module inside them, such as torch.compile's and DataParallel.

A wrapper hides the names of `forward`'s parameters, spreads the call over the devices of the machine on which it was
saved, or compiles the module that is to be exported. In eval mode, none of them changes what is computed.
"""

from __future__ import annotations

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

_INSIDE: dict[type[nn.Module], str] = {
    OptimizedModule: "_orig_mod",
    DataParallel: "module",
    DistributedDataParallel: "module",
    AveragedModel: "module",
}
"""Maps the class of each wrapper to the attribute that contains the wrapped module."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns a module without wrappers. Wrappers of submodules are replaced in place.

    A wrapper stays if it has hooks, or if its class is a subclass with a `forward` of its own.
    """
    while (name := _attribute(module)) is not None:
        module = getattr(module, name)
    for part in module.modules():
        part._compiled_call_impl = None  # set by Module.compile
        for name, child in part._modules.items():
            if child is not None and not isinstance(part, torch.jit.ScriptModule) and _attribute(child) is not None:
                part._modules[name] = unwrapped(child)
    return module


def _attribute(module: nn.Module) -> str | None:
    """Returns the attribute that contains the module inside a wrapper, or None if the module must stay as it is."""
    kind = next((kind for kind in _INSIDE if isinstance(module, kind)), None)
    if kind is None or module._forward_hooks or module._forward_pre_hooks:
        return None
    return _INSIDE[kind] if getattr(type(module), "forward", None) is getattr(kind, "forward", None) else None
