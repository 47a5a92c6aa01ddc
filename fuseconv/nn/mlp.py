"""MLP: two or three linear layers and their activations in one kernel, which keeps what is between them on the chip."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fuseconv.ops  # noqa: F401  # registers the op
from fuseconv.errors import UsageError

MAX_WIDTH = 256
"""The widest layer, input included, that the kernel keeps on the chip."""


class MLP(nn.Module):
    """A perceptron of two or three linear layers, at most 256 wide, in one kernel.

    Constructed as the `nn.Sequential` it stands for, with its state dict:
    `MLP(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))`. All hidden layers have one activation, the last layer its
    own or none: ReLU, GELU, SiLU, Sigmoid, Tanh, Identity.

    Shape:
        x [..., K], K being the first layer's in_features; the result [..., N], N the last one's out_features, of x's
        dtype.

    Raises:
        UsageError: the layers are others than these.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        for position, layer in enumerate(layers):
            self.add_module(str(position), layer)
        self.act, self.last_act = _activations(layers)

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> MLP:
        """Returns a module of the very layers of `sequential`, under their names: an optimizer that holds them goes on.

        Raises:
            UsageError: the layers are not such that the op computes them.
        """
        made = cls(*sequential)
        made._modules = dict(sequential.named_children())
        return made.train(sequential.training)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the last layer's activation; x [..., K], the result [..., N]."""
        linears = [layer for layer in self.children() if isinstance(layer, nn.Linear)]
        operands = [tensor for linear in linears for tensor in (linear.weight, linear.bias)]
        result: Tensor = torch.ops.fuseconv.mlp(x, *operands, act=self.act, last_act=self.last_act)
        return result


def activation_of(layer: nn.Module) -> str | None:
    """Returns what the ops' `act` arguments call an activation module; None for another module."""
    if type(layer) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}[layer.approximate]
    names = {nn.Identity: "none", nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}
    return names.get(type(layer))


def _activations(layers: tuple[nn.Module, ...]) -> tuple[str, str]:
    """Returns the names of the hidden layers' activation and of the last layer's."""
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
            raise _refused(f"{layer} is neither a Linear nor the one activation after it")
    if len(acts) not in (2, 3):
        raise _refused(f"there are {len(acts)} linear layers")
    if len(set(acts[:-1])) > 1:
        raise _refused(f"the hidden layers have different activations, {' and '.join(acts[:-1])}")
    if max(widths) > MAX_WIDTH:
        raise _refused(f"a layer is {max(widths)} wide")
    return acts[0], acts[-1]


def _refused(what: str) -> UsageError:
    fix = f"give 2 or 3 nn.Linear, at most {MAX_WIDTH} wide, one activation after each hidden one; else use LinearAct"
    return UsageError(what, where="MLP", fix=fix)
