"""mlp: two or three linear layers, each followed by an activation, with widths of at most 256."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.autocast import lower
from fuseconv.ops.gradient import by_reference
from fuseconv.ops.like import without_activation
from fuseconv.ops.linear_act import linear_act
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    weight3: Tensor | None = None,
    bias3: Tensor | None = None,
    act: str = "relu",
    last_act: str = "none",
) -> Tensor:
    """Two or three linear layers with activations, in one kernel.

    h1 = act(x weight1^T + bias1), h2 = act(h1 weight2^T + bias2), and so on. The last layer applies `last_act` instead
    of `act`.

    Args:
        x: [..., K]. K, N1, N2 and N3 must be at most 256.
        weight1: [N1, K], with the dtype of x.
        bias1: [N1], or None for 0.
        weight2: [N2, N1].
        bias2: [N2], or None for 0.
        weight3: [N3, N2], or None for two layers.
        bias3: [N3], or None for 0.
        act: the activation of the hidden layers.
        last_act: the activation of the last layer.

    Returns:
        A tensor [..., N], where N is the width of the last layer.

    Examples:
        >>> fuseconv.ops.mlp(torch.tensor([[2.0, -1.0]]), torch.eye(2), None, torch.ones(1, 2), None)
        tensor([[2.]])
    """
    h = activate(functional.linear(x, weight1, bias1), act)
    h = functional.linear(h, weight2, bias2)
    if weight3 is not None:
        h = functional.linear(activate(h, act), weight3, bias3)
    return activate(h, last_act)


def unfused(arguments: SimpleNamespace) -> Any:
    """Computes the result with one linear_act per layer, because the gradient needs the hidden layers' results."""
    a = arguments
    h = linear_act(a.x, a.weight1, a.bias1, act=a.act)
    if a.weight3 is not None:
        h = linear_act(h, a.weight2, a.bias2, act=a.act)
    last, bias = (a.weight2, a.bias2) if a.weight3 is None else (a.weight3, a.bias3)
    return linear_act(h, last, bias, act=a.last_act)


MANY_ROWS = (
    (4300, (256, 192, 136), "gelu"),
    (8700, (256, 256, 256, 256), "silu"),
    (17000, (128, 256, 64), "relu"),
    (60000, (256, 256, 256), "relu"),
)
"""Calls for CUDA only: the rows, the widths and the activation of each. The numbers of 64-row tiles exceed, in this
order, half, once, twice and seven times the number of SMs of an H200: the op uses a different kernel, or the kernel
uses its buffers once or several times."""


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)

    def layers(*widths: int, bias: bool = True) -> tuple[Tensor | None, ...]:
        values: list[Tensor | None] = []
        for inputs, outputs in pairwise(widths):
            values += [draw(outputs, inputs, scale=max(inputs, 1) ** -0.5), draw(outputs) if bias else None]
        return tuple(values)

    two, three = layers(24, 32, 16), layers(24, 32, 40, 16)
    x = draw(5, 24)
    wide = [
        Sample(f"rows_{rows}_{'_'.join(map(str, widths))}", (draw(rows, widths[0]), *layers(*widths)), {"act": act})
        for rows, widths, act in (
            (70, (64, 64, 64), "gelu"),
            (300, (128, 128, 128), "silu"),
            (300, (64, 128, 96, 10), "relu"),
            (257, (256, 256, 256), "gelu"),
            (130, (256, 256, 256, 256), "relu"),
            (1100, (40, 200, 136, 8), "tanh"),
            (2100, (256, 192, 72), "relu"),
            *(MANY_ROWS if device == "cuda" else ()),
        )
    ]
    # With positive weights, an infinite input gives infinite results, or NaN if a kernel reads a padding column.
    infinite = draw(70, 256)
    infinite[3, 5] = torch.inf
    positive = (draw(200, 256).abs(), draw(200), draw(136, 200).abs(), None)
    return [
        Sample("two", (x, *two)),
        Sample("three", (x, *three)),
        *(Sample(act, (x, *three), {"act": act, "last_act": act}) for act in ACTIVATIONS),
        *wide,
        Sample("infinite", (infinite, *positive), {"act": "relu"}),
        Sample("without_bias", (x, *layers(24, 32, 40, 16, bias=False)), {"last_act": "sigmoid"}),
        Sample("mixed_bias", (x, two[0], None, *two[2:]), {"act": "sigmoid"}),
        Sample("one_dim", (draw(24), *two), {"act": "gelu"}),
        Sample("four_dims", (draw(2, 3, 2, 24), *three), {"act": "silu"}),
        Sample("ones", (draw(1, 1), *layers(1, 1, 1)), {"act": "tanh"}),
        Sample("odd", (draw(9, 17), *layers(17, 31, 33, 7)), {"act": "sigmoid", "last_act": "sigmoid"}),
        Sample("odd_between", (draw(9, 16), *layers(16, 31, 8)), {"act": "sigmoid"}),
        Sample("one_output", (draw(150, 64), *layers(64, 256, 1))),
        Sample("no_rows", (draw(0, 24), *two)),
        Sample("no_inner", (draw(3, 0), *layers(0, 8, 8)), {"act": "gelu"}),
        Sample("no_hidden", (x, *layers(24, 0, 8))),
        Sample("no_outputs", (x, *layers(24, 8, 0))),
        Sample("x_padded_rows", (draw.padded(70, 24), *two)),
        Sample("x_permuted", (draw.permuted(2, 3, 24), *two), {"act": "gelu"}),
        Sample("x_swapped_dims", (draw(3, 2, 24).transpose(0, 1), *two), {"act": "gelu"}),
        Sample("x_expanded", (draw(1, 24).expand(70, 24), *three)),
        Sample("weight_transposed", (x, draw.permuted(32, 24), two[1], draw.permuted(16, 32), None), {"act": "gelu"}),
        Sample("strided", (draw.strided(5, 24), draw.strided(32, 24), draw.strided(32), draw.strided(8, 32), None)),
        Sample("unaligned", (draw.unaligned(70, 24), draw.unaligned(32, 24), draw.unaligned(32), *two[2:])),
        Sample("unaligned_bias", (draw(70, 24), two[0], draw.unaligned(32), *two[2:])),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, first, second = draw(5, 24), draw(32, 24), draw(16, 32)
    long = "257 wide; at most 256 fit in one kernel: use linear_act for each layer"
    return [
        Sample("inner", (x, draw(32, 23), None, second, None), matches=r"weight1 .* \[N, 24\].*but has \[32, 23\]"),
        Sample(
            "chain", (x, first, None, draw(16, 31), None), matches=r"weight2 .* \[N, 32\], the rows of .*\[16, 31\]"
        ),
        Sample("third", (x, first, None, second, None, draw(4, 4)), matches=r"weight3 must have the shape \[N, 16\]"),
        Sample("weight_rank", (x, draw(24), None, second, None), matches=r"weight1 must have .*but has \[24\]"),
        Sample("scalar", (draw(), first, None, second, None), matches="x must have at least one dim"),
        Sample("bias", (x, first, draw(24), second, None), matches=r"bias1 must have the shape \[32\].*has \[24\]"),
        Sample("bias2", (x, first, None, second, draw(1)), matches=r"bias2 must have the shape \[16\].*has \[1\]"),
        Sample("bias3", (x, first, None, second, None, None, draw(1)), matches="bias3 is given without weight3"),
        Sample("act", (x, first, None, second, None, None, None, "GELU"), matches="unknown activation 'GELU'"),
        Sample("last", (x, first, None, second, None, None, None, "relu", "x"), matches="unknown activation 'x'"),
        Sample("wide_x", (draw(2, 257), draw(8, 257), None, draw(8, 8), None), matches=f"last dim of x .*{long}"),
        Sample("wide", (x, draw(257, 24), None, draw(8, 257), None), matches=f"weight1 makes a layer {long}"),
        Sample("dtypes", (x, first, None, second.half(), None), matches="weight2 and x must have the same dtype"),
        Sample("bias_dtype", (x, first, draw(32).half(), second, None), matches="bias1 and x must have the same dtype"),
        Sample("ints", (x.int(), first.int(), None, second.int(), None), matches="x must be float64, float32"),
    ]


mlp = Op(
    "mlp",
    reference,
    samples,
    errors,
    replace(by_reference(reference), unfused=unfused),
    lower,
    like=without_activation(reference),
)
