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

    A wrapper stays if it has hooks, or if its class is a subclass with a `forward` of its own. Where a wrapper of a
    submodule is removed, its attribute for the module inside leads to the same module, as in `self.net.module.encode`.
    """
    while (name := _attribute(module)) is not None:
        module = getattr(module, name)
    for part in module.modules():
        part._compiled_call_impl = None  # set by Module.compile
        for name, child in part._modules.items():
            if child is not None and not isinstance(part, torch.jit.ScriptModule) and _attribute(child) is not None:
                part._modules[name] = _inside(child)
    return module


def _inside(wrapper: nn.Module) -> nn.Module:
    """Returns the module inside the wrapper of a submodule, which has the wrappers' attributes for itself.

    An attribute that the module itself has is kept. The attributes are no submodules, which would have further names.
    """
    inside = unwrapped(wrapper)
    while (name := _attribute(wrapper)) is not None:
        if not hasattr(inside, name):
            object.__setattr__(inside, name, inside)
        wrapper = getattr(wrapper, name)
    return inside


def _attribute(module: nn.Module) -> str | None:
    """Returns the attribute that contains the module inside a wrapper, or None if the module must stay as it is."""
    kind = next((kind for kind in _INSIDE if isinstance(module, kind)), None)
    if kind is None or module._forward_hooks or module._forward_pre_hooks:
        return None
    return _INSIDE[kind] if getattr(type(module), "forward", None) is getattr(kind, "forward", None) else None
