"""What the functions of rules read of an operand in a graph. torch is imported inside, as in predicates.py."""

from __future__ import annotations

from typing import Any

from fuseconv.rulebook.refused import Refused, text_of


def fake_of(operand: Any) -> Any:
    """Returns the fake tensor of a node: its dtype, device and (symbolic) shape."""
    import torch

    meta = getattr(operand, "meta", None)
    fake = meta.get("val") if isinstance(meta, dict) else None
    if not isinstance(fake, torch.Tensor):
        raise Refused("a tensor", text_of(operand))
    return fake


def base_of(operand: Any) -> Any:
    """Returns the base of a view, following views of views. A value that is not a view is returned as it is."""
    while (schema := getattr(getattr(operand, "target", None), "_schema", None)) is not None:
        if not any(result.alias_info is not None for result in schema.returns):
            break
        operand = operand.args[0]
    return operand


def is_under_autocast(operand: Any) -> bool:
    """Returns whether ops are called under autocast, which casts their operands."""
    import torch

    return torch.is_autocast_enabled(fake_of(operand).device.type)
