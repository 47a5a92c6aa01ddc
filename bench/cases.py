"""What is timed: a table of calls of the ops, with real sizes, and of models of linear layers that learn.

An op's eager peer is its reference, plain PyTorch; where `torch.compile` is a peer, that is what it compiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fuseconv import ops

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
Call = Callable[..., Any]


@dataclass(frozen=True)
class Operands:
    """The tensors of one call, and what else the op is called with."""

    tensors: tuple[Tensor | None, ...]
    rest: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    Attributes:
        op: the op's name, or what the model does.
        act: its activation; empty for an op without one.
        dtype: short name.
        shape: of the product (M, N, K), of the operands, or (batch, widths...) of a model.
        draw: `(device) -> Operands`.
        ours: the op.
        eager: the same in plain PyTorch, on the same operands.
        products: the sizes (m, n, k) of the matrix products in it; none for an op that memory bounds.
        plain: plain PyTorch that gives in float64 what `ours` must give, where `eager` draws other random numbers.
        learns: whether the gradients of the operands that require them are a part of the call.
    """

    op: str
    act: str
    dtype: str
    shape: tuple[int, ...]
    draw: Callable[[str], Operands]
    ours: Call
    eager: Call
    products: tuple[tuple[int, int, int], ...] = ()
    plain: Call | None = None
    learns: bool = False

    @property
    def flops(self) -> int:
        """The operations of the products."""
        return sum(2 * m * n * k for m, n, k in self.products)


def draw(
    device: str,
    dtype: str,
    shapes: Sequence[tuple[int, ...] | None],
    rest: tuple[Any, ...] = (),
    *,
    weights: bool = False,
) -> Operands:
    """Draws operands. Random, never zeros: those switch fewer transistors, and run faster than a user's data.

    Args:
        device: `cpu` or `cuda`.
        dtype: short name.
        shapes: of the tensors; None for one left out.
        rest: the other arguments.
        weights: whether matrices after the first tensor are scaled so that a product has variance 1.
    """
    generator = torch.Generator(device).manual_seed(0)
    tensors: list[Tensor | None] = []
    for number, shape in enumerate(shapes):
        scale = 1 / math.sqrt(shape[-1]) if weights and number and shape is not None and len(shape) > 1 else 1.0
        values = None if shape is None else torch.randn(shape, device=device, generator=generator) * scale
        tensors.append(None if values is None else values.to(DTYPES[dtype]))
    return Operands(tuple(tensors), rest)


def op_case(
    name: str,
    dtype: str,
    shapes: Sequence[tuple[int, ...] | None],
    rest: tuple[Any, ...] = (),
    *,
    act: str = "",
    shape: tuple[int, ...] = (),
    products: tuple[tuple[int, int, int], ...] = (),
    eager: Call | None = None,
) -> Iterator[Case]:
    """Yields the case of an op, if this build has the op."""
    op = next((op for op in ops.OPS if op.name == name), None)
    if op is not None:
        yield Case(
            name,
            act,
            dtype,
            shape or tuple(shapes[0] or ()),
            lambda device: draw(device, dtype, shapes, rest, weights=bool(products)),
            op.overload,
            eager or op.reference,
            products,
            op.reference,
        )


SIX = [(128, 3072, 768), (4096, 3072, 768), (12608, 3072, 768), (8192, 4096, 1024), (2048, 5632, 2048), (4096,) * 3]
SMALL = [(1, 3072, 768), (16, 3072, 768), (64, 3072, 768), (128, 768, 3072)]
OTHER = [(512, 768, 768), (1024, 3072, 768), (4096, 768, 3072)]
GATED = [(2048, 5632, 2048), (4096, 11008, 4096), (128, 11008, 4096), (16, 5632, 2048), (4096, 3072, 768)]
PERCEPTRONS = [(4096, 64, 64, 64), (4096, 256, 256, 256), (65536, 128, 128, 128), (65536, 256, 256, 256, 256)]
IMAGES = [(2, 320, 64, 64), (16, 320, 64, 64), (2, 1280, 16, 16), (1, 128, 512, 512), (1, 320, 32, 32)]
"""Of a diffusion model and of its decoder; the last is small enough for a CPU."""
CONVOLUTIONS = [(64, 64, 56, 64, 3, 1), (64, 256, 14, 1024, 1, 1), (32, 144, 56, 144, 5, 144), (1, 32, 28, 64, 3, 1)]
"""Batch, channels, height and width, channels of the result, height and width of the kernel, groups; the last is small
enough for a CPU."""
WINDOWS = [(512, 6, 49, 32), (64, 12, 64, 64), (32, 4, 49, 32)]
"""Batch, heads, tokens and width; the last is small enough for a CPU."""
CAUSAL = [(2, 32, 8, 2048, 128), (16, 12, 12, 1024, 64), (1, 8, 2, 128, 64)]
"""Batch, heads of queries, heads of keys, tokens and width; the last is small enough for a CPU."""
TRAINED = [(256, 256, 2), (512, 1024, 4), (4096, 4096, 4)]
"""Batch, width and layers."""


def cases(device: str, backend: str = "auto") -> Iterator[Case]:
    """Yields every case of a device, those that the goals name first in each family.

    Args:
        device: a CPU has smaller sizes.
        backend: of `linear_act`.
    """
    large = device == "cuda"
    yield from linear_cases((*SIX, *SMALL, *OTHER) if large else (*SMALL[:3], OTHER[0]), backend, half=large)
    yield from memory_cases((16384, 4096) if large else (1024, 4096))
    yield from image_cases(IMAGES if large else IMAGES[-1:])
    yield from convolution_cases(CONVOLUTIONS if large else CONVOLUTIONS[-1:], half=large)
    yield from seed_cases()
    yield from attention_cases(WINDOWS if large else WINDOWS[-1:], half=large)
    yield from causal_cases(CAUSAL if large else CAUSAL[-1:], half=large)
    for dtype in ("f32", "bf16", "f16") if large else ("f32",):
        for m, h, k in GATED if large else [(128, 1024, 512)]:
            shapes, product = ((m, k), (2 * h, k), None), ((m, 2 * h, k),)
            yield from op_case("linear_gated", dtype, shapes, ("silu",), act="silu", shape=(m, h, k), products=product)
        for act, (batch, *widths) in itertools.product(("relu", "gelu"), PERCEPTRONS if large else PERCEPTRONS[:2]):
            yield from perceptron_case(dtype, batch, widths, act)
        for batch, width, layers in TRAINED if large else TRAINED[:2]:
            yield model_case(dtype, batch, width, layers, learns=False)
            yield model_case(dtype, batch, width, layers, learns=True)


def linear_cases(shapes: Sequence[tuple[int, ...]], backend: str, *, half: bool) -> Iterator[Case]:
    """Yields linear_act with a bias, each activation that the goals name."""
    for dtype in ("bf16", "f16", "f32") if half else ("f32",):
        for m, n, k in shapes:
            for act in ("none", "relu", "gelu_tanh", "gelu", "silu"):
                tensors = ((m, k), (n, k), (n,), None)
                yield from op_case(
                    "linear_act", dtype, tensors, (act, backend), act=act, shape=(m, n, k), products=((m, n, k),)
                )


def memory_cases(shape: tuple[int, int]) -> Iterator[Case]:
    """Yields the ops that memory bounds."""
    row = shape[-1:]
    for dtype in ("f32", "bf16", "f16", "f64"):
        yield from op_case("mul_add", dtype, (shape,) * 3)
        yield from op_case("mul_tanh", dtype, (shape,) * 2)
        yield from op_case("add_relu", dtype, (shape,) * 2)
        for act in ("relu", "gelu", "silu"):
            yield from op_case("bias_act", dtype, (shape, row), (act,), act=act)
            yield from op_case("layer_norm_act", dtype, (shape, row, row), (1e-5, act), act=act)
        yield from op_case("add_layer_norm", dtype, (shape, shape, row, row), (1e-5,))
        yield from op_case("rms_norm", dtype, (shape, row), (1e-5,))
        yield from op_case("add_rms_norm", dtype, (shape, shape, row), (1e-5,))
        for name in ("sum_squared", "mean_abs"):
            yield from op_case(name, dtype, (shape,), ([-1],))
        yield from op_case("gated_act", dtype, (shape,), ("silu",), act="silu")
        yield from dropout_case(dtype, shape)


def image_cases(shapes: Sequence[tuple[int, ...]]) -> Iterator[Case]:
    """Yields group_norm_act of 32 groups, as diffusion models call it, of contiguous and of channels-last images."""

    def call(norm: Call) -> Call:
        return lambda x, weight, bias, act: norm(x, 32, weight, bias, 1e-5, act)

    for dtype, shape in itertools.product(("f32", "bf16", "f16"), shapes):
        for case in op_case("group_norm_act", dtype, (shape, *[shape[1:2]] * 2), ("silu",), act="silu"):
            ours, eager = call(case.ours), call(case.eager)
            whole = Case(case.op, case.act, dtype, shape, case.draw, ours, eager, plain=eager)
            yield whole
            yield replace(whole, act=f"{case.act}, channels last", draw=partial(channels_last, case.draw))


def convolution_cases(shapes: Sequence[tuple[int, ...]], *, half: bool) -> Iterator[Case]:
    """Yields conv_act of images that are channels last, with a bias and a kernel that keeps their size."""
    for dtype, shape in itertools.product(("f16", "bf16", "f32") if half else ("f32",), shapes):
        batch, channels, size, out, kernel, groups = shape
        tensors = ((batch, channels, size, size), (out, channels // groups, kernel, kernel), (out,), None)
        rest = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups, "relu")
        for case in op_case("conv_act", dtype, tensors, rest, act="relu", shape=shape):
            yield replace(case, draw=partial(channels_last, case.draw))


def channels_last(draw: Callable[[str], Operands], device: str) -> Operands:
    """Returns the operands that `draw` gives, with images and kernels in the channels-last format."""
    drawn = draw(device)
    tensors = [
        t.contiguous(memory_format=torch.channels_last) if t is not None and t.dim() == 4 else t for t in drawn.tensors
    ]
    return Operands(tuple(tensors), drawn.rest)


def dropout_case(dtype: str, shape: tuple[int, int]) -> Iterator[Case]:
    """Yields gelu_dropout; what a user of torch calls draws the mask by itself."""
    for case in op_case("gelu_dropout", dtype, (shape,), (0.1,)):

        def seeded(device: str, case: Case = case) -> Operands:
            drawn = case.draw(device)
            return Operands((*drawn.tensors, torch.full((1,), 7, device=device)), drawn.rest)

        def eager(x: Tensor, _: Tensor, p: float) -> Tensor:
            return nn.functional.dropout(nn.functional.gelu(x), p)

        yield Case(case.op, "gelu", dtype, shape, seeded, case.ours, eager, plain=case.plain)


def seed_cases() -> Iterator[Case]:
    """Yields the calls that fused-kernel projects show: f32, square."""
    side, square = 2048, (2048, 2048)
    product = ((side, side, side),)
    yield from op_case("add_relu", "f32", (square, square))
    yield from op_case("layer_norm_act", "f32", (square, (side,), (side,)), (1e-5, "relu"), act="relu")
    yield from op_case("bias_act", "f32", (square, (side,)), ("gelu",), act="gelu")
    yield from op_case("mul_add", "f32", (square,) * 3)
    linear = (square, square, (side,), None)
    yield from op_case("linear_act", "f32", linear, ("gelu",), act="gelu", shape=(side,) * 3, products=product)
    for dtype in ("f32", "bf16"):
        scores = (square, square, None)
        yield from op_case("attention_score", dtype, scores, (1.0,), shape=(side,) * 3, products=product)


def attention_cases(shapes: Sequence[tuple[int, ...]], *, half: bool) -> Iterator[Case]:
    """Yields attention with a mask per window and head; bench/attention.py has other kernels beside it."""

    def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)

    for dtype, (batch, heads, tokens, width) in itertools.product(("f16", "bf16") if half else ("f32",), shapes):
        operands = [(batch, heads, tokens, width)] * 3 + [(batch, heads, tokens, tokens)]
        scale = width**-0.5
        yield from op_case("attention", dtype, operands, (scale,), shape=(batch, heads, tokens, width), eager=eager)


def causal_cases(shapes: Sequence[tuple[int, ...]], *, half: bool) -> Iterator[Case]:
    """Yields causal_attention, as decoders call it for a prompt."""

    def eager(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)

    for dtype, shape in itertools.product(("f16", "bf16") if half else ("f32",), shapes):
        batch, heads, groups, tokens, width = shape
        operands = [(batch, heads, tokens, width), *[(batch, groups, tokens, width)] * 2]
        yield from op_case("causal_attention", dtype, operands, (width**-0.5,), shape=shape, eager=eager)


def perceptron_case(dtype: str, batch: int, widths: Sequence[int], act: str) -> Iterator[Case]:
    """Yields mlp: two or three layers in one kernel."""
    sizes = list(itertools.pairwise(widths))
    layers: list[tuple[int, ...] | None] = [shape for k, n in sizes for shape in ((n, k), (n,))]
    layers += [None] * (6 - len(layers))
    products = tuple((batch, n, k) for k, n in sizes)
    shapes = ((batch, widths[0]), *layers)
    yield from op_case("mlp", dtype, shapes, (act,), act=act, shape=(batch, *widths), products=products)


def model_case(dtype: str, batch: int, width: int, layers: int, *, learns: bool) -> Case:
    """Returns a model of `layers` times Linear and ReLU; `learns` adds the gradients of all its parameters."""
    shapes = [(batch, width), *[(width, width), (width,)] * layers]

    def forward(linear: Call) -> Call:
        def call(x: Tensor, *parameters: Tensor) -> Tensor:
            for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
                x = linear(x, weight, bias)
            return x

        return call

    ours = forward(lambda x, weight, bias: torch.ops.fuseconv.linear_act(x, weight, bias, None, "relu"))
    eager = forward(lambda x, weight, bias: torch.relu(nn.functional.linear(x, weight, bias)))

    def drawn(device: str) -> Operands:
        operands = draw(device, dtype, shapes, weights=True)
        for parameter in operands.tensors[1:]:
            assert parameter is not None
            parameter.requires_grad_(learns)
        return operands

    calls = layers + (2 * layers - 1 if learns else 0)
    product = (batch, width, width)
    name = "linear_relu_training" if learns else "linear_relu_model"
    return Case(name, "relu", dtype, (batch, width, layers), drawn, ours, eager, (product,) * calls, eager, learns)
