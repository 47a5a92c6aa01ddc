"""LinearAct and LinearGated: linear layers whose activation, gate and residual are fused into the matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fuseconv.errors import UsageError
from fuseconv.ops.activation import parse_activation
from fuseconv.ops.autocast import current

GATE, UP = "gate_proj", "up_proj"
"""The names that Llama, Qwen, Gemma and Mistral give to the two linear layers of a gated layer."""


class LinearAct(nn.Linear):
    """Computes act(x weight^T + bias) + residual in one kernel.

    The initialization and the state dict are the same as for `nn.Linear`. Under torch.autocast, the op computes in the
    autocast dtype.

    The class is a subclass of `nn.Linear`. A tool that replaces every `nn.Linear`, for example to quantize the model,
    therefore replaces this module, too, and removes the activation. Apply such a tool to the model before you use this
    class.

    Args:
        in_features: K, the size of the last dim of x.
        out_features: N, the size of the last dim of the result.
        bias: whether the layer has a bias.
        act: the activation, one of `fuseconv.ops.ACTIVATIONS`, such as "relu", "gelu" (with erf) or "leaky_relu(0.1)".
        device: the device of the parameters.
        dtype: float64, float32, float16 or bfloat16.

    Shape:
        x: [..., K]. residual, if given: [..., N]. weight: [N, K]. bias: [N]. The result is [..., N], in the dtype of x.

    Raises:
        UsageError: the activation is unknown, or its parameter is invalid.
        RuntimeError: a call has wrong shapes or dtypes; see `fuseconv.ops.linear_act`.

    Examples:
        >>> layer = fuseconv.nn.LinearAct(8, 4, act="gelu")
        >>> layer(torch.randn(2, 8)).shape
        torch.Size([2, 4])
        >>> plain = torch.nn.Linear(8, 4)
        >>> fuseconv.nn.LinearAct.from_linear(plain, "relu").weight is plain.weight
        True
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
        """Returns a LinearAct that shares the parameters of `linear`, so that existing optimizers remain valid."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, act, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        return made.train(linear.training)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns act(x weight^T + bias) + residual, of shape [..., N], for x [..., K] and residual [..., N].

        The residual counts as 0 if it is None.
        """
        if residual is not None and current(residual.device.type) not in (None, residual.dtype):
            # The op would cast the residual to the autocast dtype, but a float32 residual must stay float32.
            return self(x) + residual  # type: ignore[no-any-return]  # a module's call
        result: Tensor = torch.ops.fuseconv.linear_act(x, self.weight, self.bias, residual, self.act)
        return result

    def extra_repr(self) -> str:
        """Returns the arguments as `print` shows them."""
        return f"{super().extra_repr()}, act={self.act}"


class LinearGated(nn.Module):
    """Computes act(x Wg^T + bg) * (x Wu^T + bu): SwiGLU with silu, GEGLU with gelu, GLU with sigmoid.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.

    The weights of the gate (Wg) and of the up projection (Wu) are stored in one matrix [2H, K], so that x is read once.
    The first H rows belong to the gate, as in Phi-3's `gate_up_proj`. The module also loads a state dict that contains
    `gate_proj.weight` and `up_proj.weight` (and their biases) instead of `weight` (and `bias`). Wg and Wu are
    initialized like the weights of `nn.Linear`. Under torch.autocast, the op computes in the autocast dtype.

    Args:
        in_features: K, the size of the last dim of x.
        hidden_features: H, the size of the last dim of the result.
        bias: whether the layer has a bias.
        act: the activation of the gate, one of `fuseconv.ops.ACTIVATIONS`, such as "silu" or "gelu" (with erf).
        device: the device of the parameters.
        dtype: float64, float32, float16 or bfloat16.

    Shape:
        x: [..., K]. weight: [2H, K]. bias: [2H]. The result is [..., H], in the dtype of x.

    Raises:
        UsageError: the activation is unknown, or its parameter is invalid.
        RuntimeError: a call has wrong shapes or dtypes; see `fuseconv.ops.linear_gated`.

    Examples:
        >>> layer = fuseconv.nn.LinearGated(8, 16, act="silu")
        >>> layer(torch.randn(2, 8)).shape
        torch.Size([2, 16])
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
        """Returns a LinearGated with copies of the weights and biases of two linear layers.

        The weights are copied because the op expects both weights in one matrix.

        Args:
            gate: the linear layer of the gate.
            up: the linear layer of the up projection, with the same sizes as `gate`.
            act: the activation of the gate.

        Raises:
            UsageError: the layers have different sizes, only one of them has a bias, or the activation is invalid.
        """
        shapes = [(one.in_features, one.out_features, one.bias is not None) for one in (gate, up)]
        if shapes[0] != shapes[1]:
            raise UsageError(
                f"the layers differ: gate is {gate}, up is {up}",
                where="LinearGated.from_linear",
                fix="pass two layers of the same sizes, both with a bias or both without",
            )
        weight = gate.weight
        made = cls(gate.in_features, gate.out_features, gate.bias is not None, act, weight.device, weight.dtype)
        made.load_state_dict({f"{name}.{key}": value for name, key, value in _halves(gate, up)})
        return made.train(gate.training)

    def reset_parameters(self) -> None:
        """Initializes the weights and biases of the gate and the up projection like `nn.Linear.reset_parameters`."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Returns act(x Wg^T + bg) * (x Wu^T + bu), of shape [..., H], for x [..., K]."""
        result: Tensor = torch.ops.fuseconv.linear_gated(x, self.weight, self.bias, self.act)
        return result

    def extra_repr(self) -> str:
        """Returns the arguments as `print` shows them."""
        sizes = f"in_features={self.in_features}, hidden_features={self.hidden_features}"
        return f"{sizes}, bias={self.bias is not None}, act={self.act}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("weight", "bias"):
            halves = [f"{prefix}{half}.{name}" for half in (GATE, UP)]
            if all(half in state_dict for half in halves):
                state_dict[prefix + name] = torch.cat([state_dict.pop(half) for half in halves])
        super()._load_from_state_dict(state_dict, prefix, *args)


def _halves(gate: nn.Linear, up: nn.Linear) -> Iterator[tuple[str, str, Tensor]]:
    """Yields the prefix, the name ("weight" or "bias") and the value of each parameter of the two layers."""
    for name, linear in ((GATE, gate), (UP, up)):
        for key, value in linear.state_dict().items():
            yield name, key, value


def checked(act: str) -> str:
    """Returns `act` if it is a valid activation, and raises an error otherwise.

    Raises:
        UsageError: the activation is unknown, or its parameter is invalid.
    """
    try:
        parse_activation(act)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise UsageError(problem, where="act", fix=fix) from error
    return act
