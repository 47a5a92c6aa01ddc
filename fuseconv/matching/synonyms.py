"""Ops that have another name: `aten.multiply` is `aten.mul`, and `aten.relu_` is `aten.relu` and a write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch._ops import OpOverload

_NAMES: Mapping[str, str] = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "fix": "trunc",
    "ger": "outer",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "linalg_matmul": "matmul",
    "max": "maximum",
    "min": "minimum",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "special_digamma": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_gammaln": "lgamma",
    "special_i0": "i0",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_psi": "digamma",
    "special_sinc": "sinc",
    "special_softmax": "softmax",
    "special_xlogy": "xlogy",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
}
"""Second names of ops. They hold for the overloads that take the same arguments."""

_ELEMENTWISE = ("hardswish",)
"""Elementwise ops that PyTorch does not tag so."""


@cache
def synonym(op: OpOverload) -> OpOverload | None:
    """Returns the op that an op is another name of; None where it has its own."""
    packet = _packet_of(op)
    name = _NAMES.get(packet.removesuffix("_"))
    if op.namespace != "aten" or name is None:
        return None
    return _alike(op, name + packet[len(packet.removesuffix("_")) :])


@cache
def functional(op: OpOverload) -> OpOverload | None:
    """Returns the op that makes a new tensor of what an elementwise op writes in place; None for any other op."""
    packet = _packet_of(op)
    if op.namespace != "aten" or not packet.endswith("_") or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    other = _alike(op, packet[:-1])
    if other is None or other._schema.is_mutable:
        return None
    return other if torch.Tag.pointwise in other.tags or packet[:-1] in _ELEMENTWISE else None


def _alike(op: OpOverload, name: str) -> OpOverload | None:
    """The overload of another op that takes the same arguments."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, overload) for overload in (packet.overloads() if packet is not None else ())]
    return next((other for other in overloads if _arguments(other) == _arguments(op)), None)


def _arguments(op: OpOverload) -> list[tuple[str, object, bool]]:
    return [(str(one.type), one.default_value, one.kwarg_only) for one in op._schema.arguments]


def _packet_of(op: OpOverload) -> str:
    return op._schema.name.split("::")[-1]
