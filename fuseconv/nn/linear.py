"""LinearAct and LinearGated: a linear layer whose activation, gate or residual is part of the matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fuseconv.errors import UsageError
from fuseconv.ops import ACTIVATIONS
from fuseconv.ops.autocast import current

GATE, UP = "gate_proj", "up_proj"
"""What Llama, Qwen, Gemma and Mistral call the two halves of a gated layer."""


class LinearAct(nn.Linear):
    """act(x weight^T + bias) + residual, in one kernel.

    It is initialised as `nn.Linear` and has its state dict. A tool that puts something else in the place of every
    `nn.Linear` replaces this one's activation too: hand it the plain model, and fuse afterwards.

    Args:
        in_features: K, the size of x's last dim.
        out_features: N, the size of the result's last dim.
        bias: whether there is a bias.
        act: none, relu, gelu (erf), gelu_tanh, silu, sigmoid or tanh.
        device: where the parameters are.
        dtype: float64, float32, float16 or bfloat16.

    Shape:
        x [..., K]; residual, where given, [..., N]; the result [..., N], of x's dtype. weight [N, K], bias [N].

    Raises:
        UsageError: there is no such activation.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        act: str = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.act = checked(act)

    @classmethod
    def from_linear(cls, linear: nn.Linear, act: str = "none") -> LinearAct:
        """Returns a module with the very parameters of `linear`: an optimizer that holds them goes on."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, act, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        return made.train(linear.training)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns act(x weight^T + bias) + residual; x [..., K], residual [..., N]."""
        if residual is not None and current(residual.device.type) not in (None, residual.dtype):
            # The op would round it to autocast's dtype; a stream of residuals in f32 stays f32.
            return self(x) + residual  # type: ignore[no-any-return]  # a module's call
        result: Tensor = torch.ops.fuseconv.linear_act(x, self.weight, self.bias, residual, self.act)
        return result

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"{super().extra_repr()}, act={self.act}"


class LinearGated(nn.Module):
    """act(x Wg^T + bg) * (x Wu^T + bu): SwiGLU with silu, GEGLU with gelu, GLU with sigmoid (arXiv:2002.05202).

    Gate and up are one matrix, so that x is read once: weight is [2H, K], the H rows of the gate first, as
    `gate_up_proj` of Phi-3 has them. A state dict with `gate_proj.weight` and `up_proj.weight` (and biases) in the
    place of `weight` is loaded too. Each half is initialised as an `nn.Linear` of its own.

    Args:
        in_features: K, the size of x's last dim.
        hidden_features: H, the size of the result's last dim.
        bias: whether there is a bias.
        act: the gate's activation: none, relu, gelu (erf), gelu_tanh, silu, sigmoid or tanh.
        device: where the parameters are.
        dtype: float64, float32, float16 or bfloat16.

    Shape:
        x [..., K]; the result [..., H], of x's dtype. weight [2H, K], bias [2H].

    Raises:
        UsageError: there is no such activation.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        bias: bool = False,
        act: str = "silu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.hidden_features, self.act = in_features, hidden_features, checked(act)
        self.weight = nn.Parameter(torch.empty(2 * hidden_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(2 * hidden_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    @classmethod
    def from_linear(cls, gate: nn.Linear, up: nn.Linear, act: str = "silu") -> LinearGated:
        """Returns a module with the weights of two linear layers, copied: two matrices cannot share memory with one.

        Raises:
            UsageError: the layers differ in size, or one of them has no bias.
        """
        shapes = [(one.in_features, one.out_features, one.bias is not None) for one in (gate, up)]
        if shapes[0] != shapes[1]:
            raise UsageError(
                f"gate is {gate}, up is {up}",
                where="LinearGated.from_linear",
                fix="give two layers of the same sizes, both with or both without a bias",
            )
        weight = gate.weight
        made = cls(gate.in_features, gate.out_features, gate.bias is not None, act, weight.device, weight.dtype)
        made.load_state_dict({f"{name}.{key}": value for name, key, value in _halves(gate, up)})
        return made.train(gate.training)

    def reset_parameters(self) -> None:
        """Draws the parameters as `nn.Linear.reset_parameters` draws those of each half."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Returns act(x Wg^T + bg) * (x Wu^T + bu); x [..., K], the result [..., H]."""
        result: Tensor = torch.ops.fuseconv.linear_gated(x, self.weight, self.bias, self.act)
        return result

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        sizes = f"in_features={self.in_features}, hidden_features={self.hidden_features}"
        return f"{sizes}, bias={self.bias is not None}, act={self.act}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("weight", "bias"):
            halves = [f"{prefix}{half}.{name}" for half in (GATE, UP)]
            if all(half in state_dict for half in halves):
                state_dict[prefix + name] = torch.cat([state_dict.pop(half) for half in halves])
        super()._load_from_state_dict(state_dict, prefix, *args)


def _halves(gate: nn.Linear, up: nn.Linear) -> Iterator[tuple[str, str, Tensor]]:
    for name, linear in ((GATE, gate), (UP, up)):
        for key, value in linear.state_dict().items():
            yield name, key, value


def checked(act: str) -> str:
    """Returns the name of an activation.

    Raises:
        UsageError: there is none of that name.
    """
    if act not in ACTIVATIONS:
        raise UsageError(f"there is no activation {act!r}", where="act", fix=f"use one of {', '.join(ACTIVATIONS)}")
    return act
