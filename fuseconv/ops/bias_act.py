"""bias_act: act(x + bias), where bias is a vector along the last dim."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import ACTIVATIONS, FROM_RESULT, activate, activate_backward
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(x: Tensor, bias: Tensor, act: str) -> Tensor:
    """act(x + bias).

    Args:
        x: [..., C].
        bias: [C], with the dtype of x.
        act: the name of the activation.

    Returns:
        A tensor [..., C].

    Examples:
        >>> fuseconv.ops.bias_act(torch.tensor([[-1.0, 2.0]]), torch.tensor([0.0, 1.0]), "relu")
        tensor([[0., 3.]])
    """
    return activate(x + bias, act)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward.

    These are the result if it determines the derivative of the activation, else x and bias, to recompute x + bias.
    """
    x, bias, act = arguments.x, arguments.bias, arguments.act
    if act == "none":
        return {"act": act}
    return {"y": results[0], "act": act} if act in FROM_RESULT else {"x": x, "bias": bias, "act": act}


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """Returns the gradients with respect to x and bias."""
    value = kept.x + kept.bias if hasattr(kept, "x") else getattr(kept, "y", None)
    grad = activate_backward(grad, value, kept.act)
    return {"x": grad, "bias": grad.sum_to_size(grad.shape[-1:]) if "bias" in needed else None}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [
        *(Sample(act, (draw(5, 77, scale=3), draw(77), act)) for act in ACTIVATIONS),
        Sample("slope", (draw(5, 77, scale=3), draw(77), "leaky_relu(-0.25)")),
        Sample("alpha", (draw(5, 77, scale=3), draw(77), "elu(2.5e-01)")),
        Sample("one_dim", (draw(19), draw(19), "relu")),
        Sample("one_element", (draw(1), draw(1), "silu")),
        Sample("one_column", (draw(9, 1), draw(1), "gelu")),
        Sample("no_rows", (draw(0, 8), draw(8), "gelu")),
        Sample("no_columns", (draw(3, 0), draw(0), "tanh")),
        Sample("threads", (draw(33, 2051), draw(2051), "gelu_tanh")),
        Sample("four_dims", (draw(2, 3, 4, 5), draw(5), "sigmoid")),
        Sample("permuted", (draw.permuted(3, 5, 7), draw(7), "gelu")),
        Sample("strided", (draw.strided(4, 10), draw.strided(10), "silu")),
        Sample("unaligned", (draw.unaligned(4, 35), draw.unaligned(35), "gelu")),
        Sample("expanded", (draw(1, 35).expand(6, 35), draw(1).expand(35), "tanh")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    return [
        Sample("size", (draw(2, 7), draw(5), "relu"), matches=r"bias must have the shape \[7\].*but has \[5\]"),
        Sample("rank", (draw(2, 7), draw(1, 7), "relu"), matches=r"bias must have the shape \[7\].*but has \[1, 7\]"),
        Sample("scalar", (draw(), draw(1), "relu"), matches="x must have at least one dim"),
        Sample("act", (draw(2, 7), draw(7), "celu"), matches="unknown activation 'celu'"),
        Sample("parameter", (draw(2, 7), draw(7), "relu(2)"), matches="'relu.2.' must be relu, which has no parameter"),
        *(
            Sample(
                f"parameter_{text}",
                (draw(2, 7), draw(7), f"elu({text}"),
                matches="must be elu or, with a finite number",
            )
            for text in ("", ")", "inf)", "nan)", "1", "1) ", "1 )", "0x1)", "1e999)", "--1)", "+1)")
        ),
        Sample("dtypes", (draw(2, 7), draw(7).double(), "relu"), matches="bias and x must have the same dtype"),
    ]


bias_act = Op("bias_act", reference, samples, errors, Gradient(keep, backward), decomposes=True)
