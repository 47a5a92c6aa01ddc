"""The functional twin of an op that writes in place: `aten.relu_` is `aten.relu` and a write."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

_ELEMENTWISE = ("hardswish",)
"""Elementwise ops that PyTorch does not tag so."""


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
