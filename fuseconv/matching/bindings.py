"""Converts arguments of nodes to and from the JSON values that plan.json stores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES, SHORT_DTYPES
from fuseconv.matching.steps import Binding
from fuseconv.rulebook.refused import Refused


def to_binding(value: Any, name: Callable[[Node], str]) -> Binding:
    """Converts an argument of a node to a JSON value.

    Args:
        value: the argument to convert: a node, a literal, or a list of these.
        name: maps a node to the name under which plan.json refers to it.

    Raises:
        Refused: plan.json cannot store an argument of this kind.
    """
    if isinstance(value, Node):
        return {"node": name(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, list | tuple):
        return {"items": [to_binding(item, name) for item in value]}
    if isinstance(value, torch.dtype):
        return {"dtype": SHORT_DTYPES.get(str(value), str(value).removeprefix("torch."))}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    raise Refused("an argument that a plan can store", repr(value))


def from_binding(binding: Binding, nodes: Callable[[str], Node]) -> Any:
    """Returns the argument that a JSON value represents. The inverse of `to_binding`.

    Args:
        binding: the JSON value to convert.
        nodes: returns the node that has a given name.

    Raises:
        Refused: the JSON value is of an unknown kind, or refers to a node that does not exist.
    """
    match binding:
        case {"node": str() as name}:
            return nodes(name)
        case {"value": None | bool() | int() | float() | str() as value}:
            return value
        case {"items": list() as items}:
            return [from_binding(item, nodes) for item in items]
        case {"number": "inf" | "-inf" | "nan" as number}:
            return float(number)
        case {"dtype": str() as name} if isinstance(
            dtype := getattr(torch, DTYPES.get(name, name).removeprefix("torch."), None), torch.dtype
        ):
            return dtype
        case {"device": "cpu" | "cuda" | "meta" as name}:
            return torch.device(name)
        case {"layout": str() as name} if isinstance(found := getattr(torch, name, None), torch.layout):
            return found
        case {"memory_format": str() as name} if isinstance(found := getattr(torch, name, None), torch.memory_format):
            return found
    raise Refused('a binding as {"node": NAME} or {"value": VALUE}', str(binding))
