"""Composes the help text of an op from its reference, its autocast policy and its error messages."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuseconv.ops.activation import ACTIVATIONS

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that every op supports."""

WIDTH = 80
"""The maximum number of columns of a help text."""


def signature_of(reference: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of an op, which is the signature of its reference, with annotations as types."""
    return inspect.signature(reference, eval_str=True)


def describe(name: str, reference: Callable[..., Any], autocast: Callable[..., Any], refusals: Sequence[str]) -> str:
    """Returns the help text of an op.

    Args:
        name: the name of the op.
        reference: the op's reference. Its docstring gives the formula, the shapes and an example.
        autocast: the op's autocast policy. Its docstring names the dtype to which tensors are cast.
        refusals: the error messages of the calls that the op rejects.
    """
    signature = signature_of(reference)
    parts = [
        f"{name}{_shown(signature)}",
        inspect.getdoc(reference) or "",
        _section("Activations", _activations(signature, refusals)),
        _section("Dtypes", [f"Floating tensors are {_listed([_name(one) for one in DTYPES])}."]),
        _section(
            "Autocast", [f"Under torch.autocast, floating tensors are cast {_lowered(inspect.getdoc(autocast) or '')}"]
        ),
        _section("Raises", [f"RuntimeError: {message}." for message in dict.fromkeys(refusals)]),
        _section("Defined in", [f"fuseconv/ops/{name}.py (plain PyTorch), csrc/ops/{name}.h (kernels)."]),
    ]
    return "\n\n".join(part for part in parts if part)


def _activations(signature: inspect.Signature, refusals: Sequence[str]) -> list[str]:
    """Returns the line that lists the activations. Returns no line if the op does not accept all activations.

    An op accepts all activations if one of its error messages reports an unknown activation.
    """
    if not any(message.startswith("unknown activation") for message in refusals):
        return []
    named = [name for name in signature.parameters if name == "act" or name.endswith("_act")]
    rest = "gelu is the erf form. leaky_relu may have its slope and elu its alpha, as in leaky_relu(0.1)."
    return [f"{' and '.join(named)}: {_listed(ACTIVATIONS)}. {rest}"]


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(signature: inspect.Signature) -> str:
    """Returns a signature as text: on one line if it fits within `WIDTH` columns, else with one line per parameter."""
    short = str(signature).replace("torch.Tensor", "Tensor")
    if len(short) <= WIDTH:
        return short
    parameters = [str(one).replace("torch.Tensor", "Tensor") for one in signature.parameters.values()]
    return "(\n" + "".join(f"    {one},\n" for one in parameters) + ")" + short.rpartition(")")[2]


def _section(title: str, lines: Sequence[str]) -> str:
    """Returns a section of a help text with its title and wrapped lines, or an empty string if there are no lines."""
    filled = (textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="        ") for line in lines)
    return "\n".join([f"{title}:", *filled]) if lines else ""


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
