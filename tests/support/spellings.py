"""Functions that models write by hand, in every spelling, with the op that each of them becomes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import functional as F

SQRT2 = math.sqrt(2)
C = math.sqrt(2 / math.pi)


def erf(x: Tensor) -> Tensor:
    return torch.erf(x / SQRT2)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(C * (x + 0.044715 * torch.pow(x, 3)))


GELU = {
    "x*(1+erf)*0.5": lambda m, x: x * (1 + erf(x)) * 0.5,
    "0.5*x*(1+erf)": lambda m, x: 0.5 * x * (1 + erf(x)),
    "x*((1+erf)*0.5)": lambda m, x: x * ((1 + erf(x)) * 0.5),
    "x*0.7071": lambda m, x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)),
    "(x*0.5)*(1+erf)": lambda m, x: (x * 0.5) * (torch.erf(x * 0.70710678) + 1),
    "halved": lambda m, x: (1 + erf(x)) / 2 * x,
    "tensor constants": lambda m, x: x * (m.one + erf(x)) * m.a_half,
    "in place": lambda m, x: (x * 1.0).mul_(0.5) * erf(x).add_(1),
    "aten": lambda m, x: F.gelu(x),
    "dropout and cast": lambda m, x: F.dropout(x * 0.5, 0.1, False) * (1 + erf(x)).to(x.dtype),
    "erfc": lambda m, x: x * 0.5 * torch.erfc(-x / SQRT2),
    "special.ndtr": lambda m, x: torch.special.ndtr(x) * x,
}
TANH = {
    "pow": lambda m, x: 0.5 * x * (1 + tanh(x)),
    "trailing": lambda m, x: x * (1 + tanh(x)) * 0.5,
    "Megatron": lambda m, x: 0.5 * x * (1 + torch.tanh(C * x * (1 + 0.044715 * x * x))),
    "x*x*x": lambda m, x: 0.5 * x * (1 + torch.tanh(C * (x + 0.044715 * x * x * x))),
    "x**3": lambda m, x: x / 2 * (torch.tanh((x + x**3 * 0.044715) * C) + 1),
    "aten": lambda m, x: F.gelu(x, approximate="tanh"),
    "x*x.square()": lambda m, x: 0.5 * x * (1 + torch.tanh(C * (x + 0.044715 * x * x.square()))),
    "x*sigmoid": lambda m, x: x * torch.sigmoid(2 * C * (x + 0.044715 * x**3)),
}
SILU = {
    "x*sigmoid": lambda m, x: x * torch.sigmoid(x),
    "sigmoid*x": lambda m, x: torch.sigmoid(x) * x,
    "x/(1+exp(-x))": lambda m, x: x / (1 + torch.exp(-x)),
    "x*(1/(1+exp(-x)))": lambda m, x: x * (1 / (1 + torch.exp(-x))),
    "aten": lambda m, x: F.silu(x),
    "x/2*(1+tanh(x/2))": lambda m, x: x / 2 * (1 + torch.tanh(x / 2)),
    "x*(1+exp(-x))**-1": lambda m, x: x * (1 + torch.exp(-x)) ** -1,
}
RELU = {
    "clamp(min=0)": lambda m, x: torch.clamp(x, min=0),
    "clamp_min": lambda m, x: x.clamp_min(0.0),
    "clamp in place": lambda m, x: x.clone().clamp_(min=0),
    "clamp(min=tensor)": lambda m, x: torch.clamp(x, min=m.zero),
    "maximum(x, 0)": lambda m, x: torch.maximum(x, m.zero),
    "maximum(zeros, x)": lambda m, x: torch.maximum(torch.zeros_like(x), x),
    "threshold": lambda m, x: F.threshold(x, 0, 0),
    "hardtanh": lambda m, x: F.hardtanh(x, 0.0, math.inf),
    "masked_fill": lambda m, x: x.masked_fill(x < 0, 0),
    "where(x<=0)": lambda m, x: torch.where(x <= 0, 0.0, x),
}
QUICK_GELU = {
    "x*sigmoid": lambda h: h * torch.sigmoid(1.702 * h),
    "sigmoid*x": lambda h: torch.sigmoid(h * 1.702) * h,
    "in place": lambda h: (h * 1.702).sigmoid_().mul_(h),
}
"""Between two linears."""

OTHER_ACTS = {
    "hardswish": (lambda m, x: x * F.relu6(x + 3) / 6, "hardswish"),
    "mish": (lambda m, x: x * torch.tanh(F.softplus(x)), "mish"),
    "sigmoid": (lambda m, x: 1 / (1 + torch.exp(-x)), "sigmoid"),
    "(1+exp(-x))**-1": (lambda m, x: (1 + torch.exp(-x)) ** -1, "sigmoid"),
    "(1+tanh(x/2))/2": (lambda m, x: 0.5 * (1 + torch.tanh(0.5 * x)), "sigmoid"),
    "x*hardsigmoid": (lambda m, x: x * F.hardsigmoid(x), "hardswish"),
    "clamp(x, 0, 6)": (lambda m, x: torch.clamp(x, 0, 6), "hardtanh"),
    "relu6": (lambda m, x: F.relu6(x), "hardtanh"),
    "relu and clamp": (lambda m, x: torch.relu(x).clamp(max=6), "hardtanh"),
    "where(x>0)": (lambda m, x: torch.where(x > 0, x, 0.1 * x), "leaky_relu"),
    "where(x<=0)": (lambda m, x: torch.where(x <= 0, x / 10, x), "leaky_relu"),
    "maximum(x, 0.1*x)": (lambda m, x: torch.maximum(x, x * 0.1), "leaky_relu"),
    "max(0.1*x, x)": (lambda m, x: torch.max(0.1 * x, x), "leaky_relu"),
    "mish by log1p": (lambda m, x: x * torch.tanh(torch.log1p(torch.exp(x))), "mish"),
}
RELU_SQUARED = {
    "relu**2": lambda h: F.relu(h) ** 2,
    "square": lambda h: torch.square(h.clamp(min=0)),
    "relu*relu": lambda h: F.relu(h) * F.relu(h),
}
LINEAR = {
    "addmm": lambda m, x: torch.addmm(m.b, x, m.w.t()),
    "addmm of [in, out]": lambda m, x: torch.addmm(m.b, x, m.v),
    "mm + b": lambda m, x: torch.mm(x, m.w.t()) + m.b,
    "b + mm": lambda m, x: m.b + torch.mm(x, m.v),
    "matmul": lambda m, x: x @ m.w.T + m.b,
    "transpose": lambda m, x: torch.matmul(x, m.w.transpose(0, 1)).add(m.b),
    "separate bias": lambda m, x: F.linear(x, m.w) + m.b,
    "two biases": lambda m, x: F.linear(x, m.w, m.b) + m.b,
    "einsum": lambda m, x: torch.einsum("bd,ed->be", x, m.w) + m.b,
    "einsum of [in, out]": lambda m, x: torch.einsum("...d,de->...e", x, m.v) + m.b,
    "tensordot": lambda m, x: torch.tensordot(x, m.v, 1) + m.b,
    "tensordot of [out, in]": lambda m, x: m.b + torch.tensordot(x, m.w, ([1], [-1])),
    "inner": lambda m, x: torch.inner(x, m.w) + m.b,
    "Conv1D": lambda m, x: torch.addmm(m.b, x.view(-1, x.size(-1)), m.v).view(*x.size()[:-1], 6),
}
LAYER_NORM = {
    "pow": lambda m, x: m.g * (x - mean(x)) / torch.sqrt(mean((x - mean(x)).pow(2)) + 1e-5) + m.e,
    "d*d": lambda m, x: (d := x - mean(x)) / torch.sqrt(mean(d * d) + 1e-5) * m.g + m.e,
    "rsqrt": lambda m, x: m.g * ((d := x - mean(x)) * torch.rsqrt(mean(d**2) + 1e-5)) + m.e,
    "var": lambda m, x: (x - mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * m.g + m.e,
    "var_mean": lambda m, x: (
        (x - (both := torch.var_mean(x, -1, unbiased=False, keepdim=True))[1]) * torch.rsqrt(both[0] + 1e-5) * m.g + m.e
    ),
    "std": lambda m, x: m.e + (x - mean(x)) * (1 / (mean((x - mean(x)) * (x - mean(x))) + 1e-5).sqrt()) * m.g,
    "square": lambda m, x: (d := x - mean(x)) * torch.rsqrt(mean(d.square()) + 1e-5) * m.g + m.e,
    "var, axis added": lambda m, x: (
        (x - x.mean(-1)[:, None]) / torch.sqrt(x.var(-1, unbiased=False).unsqueeze(-1) + 1e-5) * m.g + m.e
    ),
    "var, axis last": lambda m, x: (x - mean(x)) * torch.rsqrt(x.var(-1, correction=0) + 1e-5)[:, None] * m.g + m.e,
    "sum / n": lambda m, x: (d := x - x.sum(-1, True) / 8) / ((d * d).sum(-1, True) / 8 + 1e-5) ** 0.5 * m.g + m.e,
    "addcmul": lambda m, x: torch.addcmul(m.e, m.g, (d := x - mean(x)) * (mean(d**2) + 1e-5) ** -0.5),
    "in place": lambda m, x: (d := x.clone().sub_(mean(x))).mul(mean(d**2).add_(1e-5).rsqrt_()).mul_(m.g).add_(m.e),
}
GROUP_NORM_SILU = {
    "module": lambda m, x: torch.nn.SiLU()(m.norm(x)),
    "functional": lambda m, x: F.silu(F.group_norm(x, 2, m.g, m.e, 1e-5)),
    "in place": lambda m, x: F.silu(m.norm(x), inplace=True),
    "x*sigmoid": lambda m, x: (h := m.norm(x)) * torch.sigmoid(h),
    "x/(1+exp(-x))": lambda m, x: (h := m.norm(x)) / (1 + torch.exp(-h)),
    "sigmoid in place": lambda m, x: m.norm(x).mul_(torch.sigmoid(m.norm(x))),
    "layer norm of groups": lambda m, x: F.silu(
        F.layer_norm(x.view(-1, 2, 60), (60,), None, None, 1e-5).view(-1, 8, 5, 3) * m.scales + m.shifts
    ),
}
RMS_NORM = {
    "pow": lambda m, x: m.g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "x*x": lambda m, x: x * torch.rsqrt(mean(x * x) + 1e-6) * m.g,
    "1/sqrt": lambda m, x: x * (1 / torch.sqrt(mean(x**2) + 1e-6)) * m.g,
    "/sqrt": lambda m, x: x / torch.sqrt(mean(x * x) + 1e-6) * m.g,
    "pow(-0.5)": lambda m, x: x * torch.pow(mean(x.pow(2)) + 1e-6, -0.5) * m.g,
    "weight first": lambda m, x: x * (m.g * torch.rsqrt(mean(x * x) + 1e-6)),
    "1 + gamma": lambda m, x: x * torch.rsqrt(mean(x * x) + 1e-6) * (1.0 + m.g),
    "square": lambda m, x: x * torch.rsqrt(mean(x.square()) + 1e-6) * m.g,
    "power of a tensor": lambda m, x: x * torch.rsqrt(mean(torch.pow(x, m.two)) + 1e-6) * m.g,
    "sum / n": lambda m, x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 8 + 1e-6) * m.g,
    "sum / size": lambda m, x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6) * m.g,
    "1 / n * sum": lambda m, x: x * torch.rsqrt((1 / 8) * (x**2).sum(-1, keepdim=True) + 1e-6) * m.g,
    "/ power of a half": lambda m, x: x / (mean(x * x) + 1e-6) ** 0.5 * m.g,
    "1 / power of a half": lambda m, x: x * (1 / (mean(x * x) + 1e-6) ** 0.5) * m.g,
    "sqrt to the -1": lambda m, x: x * torch.sqrt(mean(x * x) + 1e-6) ** -1 * m.g,
    "vector_norm": lambda m, x: x * torch.rsqrt(vector_norm(x, dim=-1, keepdim=True).pow(2) / 8 + 1e-6) * m.g,
    "norm**2 / size": lambda m, x: x / torch.sqrt(x.norm(2, -1, keepdim=True) ** 2 / x.shape[-1] + 1e-6) * m.g,
    "norm**2, axis last": lambda m, x: x * torch.rsqrt(x.norm(dim=-1) ** 2 / 8 + 1e-6).unsqueeze(-1) * m.g,
    "axis after the mean": lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1)[..., None] + 1e-6) * m.g,
    "axis after eps": lambda m, x: x / (x.pow(2).mean(-1) + 1e-6)[:, None].sqrt() * m.g,
    "axis last": lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6).unsqueeze(1) * m.g,
    "axis after the root": lambda m, x: x / (x.pow(2).mean(1) + 1e-6).sqrt().unsqueeze(-1) * m.g,
    "axis after sum / n": lambda m, x: x * torch.rsqrt((x * x).sum(-1) / 8 + 1e-6)[:, None] * m.g,
}
SUM_SQUARED = {
    "x*x": lambda m, x: (x * x).sum(-1),
    "pow": lambda m, x: x.pow(2).sum(-1),
    "square": lambda m, x: x.square().sum(-1),
    "power of a tensor": lambda m, x: torch.pow(x, m.two).sum(-1),
    "in place": lambda m, x: x.clone().mul_(x).sum(-1),
    "all axes": lambda m, x: (x * x).sum(),
    "no axes": lambda m, x: torch.sum(x.square(), dim=None),
    "a dtype": lambda m, x: (x * x).sum(-1, dtype=x.dtype),
    "two axes": lambda m, x: (x * x).sum((0, 1), keepdim=True),
    "norm squared": lambda m, x: x.norm(dim=-1) ** 2,
    "vector_norm squared": lambda m, x: torch.linalg.vector_norm(x, dim=-1, keepdim=True).square(),
}

CASTS = {
    "before gamma": lambda m, x: m.g * rms(x.to(torch.float32)).to(x.dtype),
    "after gamma": lambda m, x: (m.g.float() * rms(x.float())).to(x.dtype),
    "type_as": lambda m, x: rms(x.float()).type_as(x) * m.g,
    "twice": lambda m, x: m.g * (x.float() * torch.rsqrt(mean(x.float().square()) + 1e-6)).to(x.dtype),
    "of the mean": lambda m, x: m.g * (x * torch.rsqrt(mean(x.float() ** 2) + 1e-6)).to(x.dtype),
    "of the factor": lambda m, x: m.g * (x * torch.rsqrt(mean(x.float() ** 2) + 1e-6).to(x.dtype)),
}


def deviation(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


CHANNEL_NORMS = {
    "pow": (lambda m, x: deviation(x) / torch.sqrt(deviation(x).pow(2).mean(1, True) + 1e-6), "layer_norm"),
    "square": (lambda m, x: deviation(x) * torch.rsqrt(deviation(x).square().mean(1, True) + 1e-6), "layer_norm"),
    "var": (lambda m, x: deviation(x) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-6), "layer_norm"),
    "correction": (lambda m, x: deviation(x) / (x.var(1, correction=0, keepdim=True) + 1e-6) ** 0.5, "layer_norm"),
    "var_mean": (
        lambda m, x: (x - (both := torch.var_mean(x, 1, correction=0, keepdim=True))[1]) / (both[0] + 1e-6).sqrt(),
        "layer_norm",
    ),
    "rms": (lambda m, x: x * torch.rsqrt(x.square().mean(1, True) + 1e-6), "rms_norm"),
}
"""Of images [batch, channels, height, width], over the channels."""

CHANNELS = {
    "none": lambda m, y: y,
    "parameters": lambda m, y: y * m.scales,
    "None": lambda m, y: m.g[:, None, None] * y + m.e[:, None, None],
    "view": lambda m, y: y * m.g.view(1, -1, 1, 1) + m.e.reshape(1, 8, 1, 1),
}


GLU = {
    "chunk": lambda m, x: (h := x.chunk(2, 1))[0] * torch.sigmoid(h[1]),
    "split": lambda m, x: torch.sigmoid((h := x.split(4, dim=1))[1]) * h[0],
    "slices": lambda m, x: x[:, :4] * x[:, 4:].sigmoid(),
    "sizes": lambda m, x: (h := x.split([4, 4], -3))[0] * (1 / (1 + torch.exp(-h[1]))),
    "aten": lambda m, x: F.glu(x, 1),
}
"""Of the channels of images."""


def response(m: Any, x: Tensor, axes: int | tuple[int, ...], channels: int) -> Tensor:
    norm = x.norm(p=2, dim=axes, keepdim=True)
    return x * (norm / (norm.mean(channels, keepdim=True) + 1e-6))


RESPONSE_NORM = {
    "ConvNeXt": lambda m, x: m.thirds * response(m, x, (1, 2), -1) + m.others + x,
    "addcmul": lambda m, x: x + torch.addcmul(m.shifts[None], m.scales, response(m, x, (2, 3), 1)),
    "channels first": lambda m, x: m.scales * response(m, x, (2, 3), 1) + m.shifts + x,
}
TOGETHER = {
    "q, k": lambda m, x: torch.cat([F.linear(x, m.w), F.linear(x, m.w2)], -1),
    "q, k, v": lambda m, x: torch.cat([F.linear(x, m.w, m.b), F.linear(x, m.w2, m.b2), F.linear(x, m.w3, m.b3)], 1),
}


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(mean(x.pow(2)) + 1e-6)


def mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Callable[[Tensor], Tensor] = lambda s: s / math.sqrt(8),
    mask: Callable[[Tensor], Tensor] = lambda s: s,
    softmax: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
) -> Tensor:
    return softmax(mask(scale(q @ k.transpose(-2, -1)))) @ v


def masked(value: float) -> Callable[..., Tensor]:
    return lambda m, q, k, v: attend(q, k, v, mask=lambda s: s.masked_fill(m.hide, value))


R8 = 1 / math.sqrt(8)
ATTENTION = {
    "no scale": lambda m, q, k, v: attend(q, k, v, scale=lambda s: s),
    "score / sqrt(d)": lambda m, q, k, v: attend(q, k, v),
    "scale * score": lambda m, q, k, v: attend(q, k, v, scale=lambda s: R8 * s),
    "on q": lambda m, q, k, v: attend(q * R8, k, v, scale=lambda s: s),
    "on k": lambda m, q, k, v: attend(q, k / math.sqrt(8), v, scale=lambda s: s),
    "on the transposed k": lambda m, q, k, v: (q @ (k.transpose(-2, -1) * R8)).softmax(-1) @ v,
    "sqrt on both": lambda m, q, k, v: attend(q * R8**0.5, k * R8**0.5, v, scale=lambda s: s),
    "mask added": lambda m, q, k, v: attend(q, k, v, mask=lambda s: s + m.added),
    "added to the mask": lambda m, q, k, v: attend(q, k, v, mask=lambda s: m.added + s),
    "masked_fill(-inf)": masked(-math.inf),
    "masked_fill(min)": masked(torch.finfo(torch.float32).min),
    "masked_fill(-1e4)": masked(-1e4),
    "masked_fill(-1e9)": masked(-1e9),
    "where": lambda m, q, k, v: attend(q, k, v, mask=lambda s: torch.where(m.keep, s, -math.inf)),
    "where with a tensor": lambda m, q, k, v: attend(q, k, v, mask=lambda s: torch.where(m.keep, s, m.low)),
    "permute": lambda m, q, k, v: (q @ k.permute(0, 1, 3, 2) / 2.0).softmax(-1) @ v,
    "mT": lambda m, q, k, v: (q @ k.mT / 2.0).softmax(-1) @ v,
    "einsum": lambda m, q, k, v: torch.einsum(
        "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) * R8).softmax(-1), v
    ),
    "einsum by position": lambda m, q, k, v: torch.einsum(
        "bhij,bjhd->bihd", (torch.einsum("bihd,bjhd->bhij", *by_position(q, k)) * R8).softmax(-1), v.transpose(1, 2)
    ).reshape(-1, 5, 16),
    "bmm on views": lambda m, q, k, v: (
        (torch.bmm(q.reshape(-1, 5, 8), k.reshape(-1, 5, 8).transpose(1, 2)) * R8).softmax(-1) @ v.reshape(-1, 5, 8)
    ),
    "keys by position": lambda m, q, k, v: (q @ k.transpose(1, 2).permute(0, 2, 3, 1) * R8).softmax(-1) @ v,
    "dropout": lambda m, q, k, v: F.dropout((q @ k.mT * R8).softmax(-1), 0.1, m.training) @ v,
    "sdpa": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
}
CAUSAL = {
    "tril": lambda m, q, k, v: attend(q, k, v, mask=lambda s: s.masked_fill(m.triangle == 0, -math.inf)),
    "triu": lambda m, q, k, v: attend(q, k, v, mask=lambda s: s + torch.full((5, 5), -math.inf).triu(1).to(s.dtype)),
    "arange": lambda m, q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.arange(5)[None, :] <= torch.arange(5)[:, None]
    ),
    "where": lambda m, q, k, v: attend(
        q, k, v, mask=lambda s: torch.where(torch.ones(5, 5).tril().bool(), s, torch.finfo(s.dtype).min)
    ),
    "is_causal": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}


def by_position(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def vectors(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (draw((3, 8), dtype, 0),)


def images(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (draw((3, 8, 5, 3), dtype, 0),)


def heads(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(draw((3, 2, 5, 8), dtype, seed) for seed in (1, 2, 3))


def draw(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def cases(
    family: str,
    inputs: Callable[[torch.dtype], tuple[Tensor, ...]],
    ops: Mapping[str, int],
    table: Mapping[str, Callable[..., Any]],
) -> list[ParameterSet]:
    return [pytest.param(function, inputs, ops, id=f"{family}-{name}") for name, function in table.items()]


SDPA = "aten.scaled_dot_product_attention.default"
TABLE = [
    *cases("gelu", vectors, {"aten.gelu.default": 1}, GELU),
    *cases("gelu-tanh", vectors, {"aten.gelu.default": 1}, TANH),
    *cases("silu", vectors, {"aten.silu.default": 1}, SILU),
    *cases("relu", vectors, {"aten.relu.default": 1}, RELU),
    *(
        case
        for name, (f, op) in OTHER_ACTS.items()
        for case in cases("act", vectors, {f"aten.{op}.default": 1}, {name: f})
    ),
    *cases("glu", images, {"aten.glu.default": 1}, GLU),
    *cases("linear", vectors, {"aten.linear.default": 1}, LINEAR),
    *cases("layer-norm", vectors, {"aten.layer_norm.default": 1}, LAYER_NORM),
    *cases("rms-norm", vectors, {"aten.rms_norm.default": 1}, RMS_NORM),
    *cases("attention", heads, {SDPA: 1}, ATTENTION),
    *cases("causal", heads, {SDPA: 1}, CAUSAL),
]
