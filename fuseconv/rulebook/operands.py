"""Reads properties of operands for the functions of rules. As in predicates.py, each function imports torch itself."""

from __future__ import annotations

from typing import Any

from fuseconv.rulebook.refused import Refused, text_of

FROM_WEIGHT = "from_weight"
"""The key in the `meta` of a node whose arguments may contain a number that a rule has read from a weight. A constant
that is computed from the number would be wrong for other weights."""


def fake_of(operand: Any) -> Any:
    """Returns the fake tensor of a node, which gives its dtype, device and (symbolic) shape.

    Raises:
        Refused: the operand is not a node whose value is a tensor.
    """
    import torch

    meta = getattr(operand, "meta", None)
    fake = meta.get("val") if isinstance(meta, dict) else None
    if not isinstance(fake, torch.Tensor):
        raise Refused("a tensor", text_of(operand))
    return fake


def base_of(operand: Any) -> Any:
    """Returns the base of a view, through any chain of views, or the operand itself if it is not a view."""
    while (schema := getattr(getattr(operand, "target", None), "_schema", None)) is not None:
        if not any(result.alias_info is not None for result in schema.returns):
            break
        operand = operand.args[0]
    return operand


def is_under_autocast(operand: Any) -> bool:
    """Returns whether autocast, which casts the operands of ops, is enabled for the device of the operand."""
    import torch

    return torch.is_autocast_enabled(fake_of(operand).device.type)
