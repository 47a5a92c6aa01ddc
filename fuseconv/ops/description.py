"""Composes the help text of an op from its reference, its autocast policy and the calls that it rejects."""

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


def signature_of(reference: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of an op: the signature of its reference, with evaluated annotations."""
    return inspect.signature(reference, eval_str=True)


def describe(name: str, reference: Callable[..., Any], autocast: Callable[..., Any], refusals: Sequence[str]) -> str:
    """Returns the help text of an op.

    Args:
        name: the name of the op.
        reference: the op in plain PyTorch. Its docstring gives the formula, the shapes and an example.
        autocast: the autocast policy, whose docstring describes the casts.
        refusals: the error messages of the op.
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
    """Lists the activations if the op accepts all of them, that is, if it rejects unknown activations."""
    if not any(message.startswith("unknown activation") for message in refusals):
        return []
    named = [name for name in signature.parameters if name == "act" or name.endswith("_act")]
    rest = "gelu is the erf form. leaky_relu may have its slope and elu its alpha, as in leaky_relu(0.1)."
    return [f"{' and '.join(named)}: {_listed(ACTIVATIONS)}. {rest}"]


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(signature: inspect.Signature) -> str:
    """Returns a signature on one line, or with one line per parameter."""
    short = str(signature).replace("torch.Tensor", "Tensor")
    if len(short) <= WIDTH:
        return short
    parameters = [str(one).replace("torch.Tensor", "Tensor") for one in signature.parameters.values()]
    return "(\n" + "".join(f"    {one},\n" for one in parameters) + ")" + short.rpartition(")")[2]


def _section(title: str, lines: Sequence[str]) -> str:
    filled = (textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="        ") for line in lines)
    return "\n".join([f"{title}:", *filled]) if lines else ""


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
