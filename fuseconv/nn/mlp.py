"""MLP: two or three linear layers and their activations in one kernel, with hidden values in on-chip memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fuseconv.ops  # noqa: F401  # registers the op
from fuseconv.errors import UsageError

MAX_WIDTH = 256
"""The maximum number of features of the input and of each layer's result, so that the kernel keeps them on chip."""


class MLP(nn.Module):
    """Computes two or three linear layers and their activations, with widths of at most 256, in one kernel.

    The constructor accepts the layers of the `nn.Sequential` that the module replaces. The state dict is the same as
    the state dict of that `nn.Sequential`. All hidden layers must have the same activation. The last layer may have a
    different activation or none. The supported activations are ReLU, GELU, SiLU, Sigmoid, Tanh and Identity. Under
    torch.autocast, the op computes in the autocast dtype.

    Args:
        layers: two or three `nn.Linear` modules. Each may be followed by an activation module.

    Shape:
        x: [..., K], where K is `in_features` of the first layer. The result is [..., N], in the dtype of x, where N is
        `out_features` of the last layer.

    Raises:
        UsageError: the op does not support the number, the types, the widths or the activations of the layers.
        RuntimeError: a call has wrong shapes or dtypes; see `fuseconv.ops.mlp`.

    Examples:
        >>> mlp = fuseconv.nn.MLP(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        >>> mlp(torch.randn(2, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        for position, layer in enumerate(layers):
            self.add_module(str(position), layer)
        self.act, self.last_act = _activations(layers)

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> MLP:
        """Returns an MLP that shares the layers of `sequential`, so that existing optimizers remain valid.

        Raises:
            UsageError: the op does not support the number, the types, the widths or the activations of the layers.
        """
        made = cls(*sequential)
        made._modules = dict(sequential.named_children())
        return made.train(sequential.training)

    def forward(self, x: Tensor) -> Tensor:
        """Computes all layers, and returns the result of the last layer: [..., N] for x of shape [..., K]."""
        linears = [layer for layer in self.children() if isinstance(layer, nn.Linear)]
        operands = [tensor for linear in linears for tensor in (linear.weight, linear.bias)]
        result: Tensor = torch.ops.fuseconv.mlp(x, *operands, act=self.act, last_act=self.last_act)
        return result


def activation_of(layer: nn.Module) -> str | None:
    """Returns the `act` argument for an activation module, or None if the module is not a supported activation."""
    if type(layer) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}[layer.approximate]
    names = {nn.Identity: "none", nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}
    return names.get(type(layer))


def _activations(layers: tuple[nn.Module, ...]) -> tuple[str, str]:
    """Returns the `act` argument for the hidden layers and the `act` argument for the last layer.

    Raises:
        UsageError: the op does not support the number, the types, the widths or the activations of the layers.
    """
    acts: list[str] = []
    widths = [0]
    for layer in layers:
        name = activation_of(layer)
        if type(layer) is nn.Linear:
            acts.append("none")
            widths += [layer.in_features, layer.out_features]
        elif name and acts and acts[-1] == "none":
            acts[-1] = name
        else:
            raise _refused(f"{layer} is neither an nn.Linear nor the only supported activation after an nn.Linear")
    if len(acts) not in (2, 3):
        raise _refused(f"an MLP takes 2 or 3 linear layers, but {len(acts)} are given")
    if len(set(acts[:-1])) > 1:
        raise _refused(f"the hidden layers have different activations, {' and '.join(acts[:-1])}")
    if max(widths) > MAX_WIDTH:
        raise _refused(f"a layer has width {max(widths)}, but the kernel supports at most {MAX_WIDTH}")
    return acts[0], acts[-1]


def _refused(what: str) -> UsageError:
    """Returns an error for layers that the op does not support."""
    fix = f"pass 2 or 3 nn.Linear of width {MAX_WIDTH} or less, each hidden one with an activation, or use LinearAct"
    return UsageError(what, where="MLP", fix=fix)
