"""Defines ops that archives call and that model libraries define in Python, so that the library need not be imported.

An archive (.pt2) of a mixture of experts in transformers calls `transformers::grouped_mm_fallback`. torch can read the
archive only if the op is defined, but a file must not make fuseconv import the library. Therefore fuseconv defines the
op itself. `capture` replaces the op in the program; the original model continues to call the definition in this module.

A definition stays for the rest of the process. If the library is imported later, it replaces the definition, because
both are made with `torch.library.custom_op`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def _grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: A002 - the name in the schema
    """Multiplies each group of rows by the matrix of the group, one group after the other, as transformers does."""
    output = input.new_zeros(input.size(0), weight.size(2))
    start = 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        output[start:end] = input[start:end] @ matrix
        start = end
    return output


def _grouped_mm_fake(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: A002, ARG001
    """Returns an uninitialized tensor with the shape of the result, for torch to trace."""
    return input.new_empty(input.size(0), weight.size(2))


_DEFINITIONS: Mapping[str, tuple[str, Callable[..., Tensor], Callable[..., Tensor]]] = {
    "transformers::grouped_mm_fallback": (
        "(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        _grouped_mm,
        _grouped_mm_fake,
    )
}
"""Maps the name of an op to its schema, the function that computes it, and the function that traces it."""

LIBRARY_OPS = frozenset(f"{name.replace('::', '.')}.default" for name in _DEFINITIONS)
"""The names of these ops, such as `transformers.grouped_mm_fallback.default`. An untrusted archive may call them."""

_ALONE = threading.Lock()


def define_library_ops() -> None:
    """Defines the ops that their libraries have not defined in this process."""
    with _ALONE:
        for name, (schema, compute, trace) in _DEFINITIONS.items():
            namespace, packet = name.split("::")
            if not hasattr(getattr(torch.ops, namespace), packet):
                torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
                torch.library.register_fake(name, trace)
