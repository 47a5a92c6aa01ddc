"""A random model as text: a Python file with the lines of `forward`, the inputs, and the parameters.

The file is what is converted, minimised, saved and replayed, so that a finding can be read.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import DTYPES
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import TensorSpec

_FILE = """import torch
import torch.nn.functional as F

INPUTS = [{inputs}]
RANGES = {ranges}
TARGETS = {targets}


def made(seed, dtype, *shape):
    draw = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(shape, generator=draw, dtype=torch.float64) * 0.5
    else:
        values = torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=draw)
    return torch.nn.Parameter(values.to(dtype), requires_grad=False)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
{parameters}

    def forward(self, {names}):
{lines}
        return {returned}
"""

WORD = re.compile(r"\b[a-z]\w*\b")


@dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
        inputs: by name, in the order of `forward`.
        parameters: by name; an attribute of the module each.
        lines: statements; each binds one name, or writes in place.
        returned: the names returned, with repeats.
        targets: what it is converted to.
    """

    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    parameters: Mapping[str, TensorSpec] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("export", "torchscript")

    def text(self) -> str:
        """Returns the file."""
        ranges = {name: (spec.low, spec.high) for name, spec in self.inputs.items() if spec.low is not None}
        return _FILE.format(
            inputs=", ".join(f'"{spec}"' for spec in self.inputs.values()),
            ranges=ranges,
            targets=list(self.targets),
            parameters="\n".join(
                f"        self.{name} = made({at}, {DTYPES[spec.dtype]}, {', '.join(map(str, spec.shape))})"
                for at, (name, spec) in enumerate(self.parameters.items())
            )
            or "        pass",
            names=", ".join(self.inputs),
            lines="\n".join(f"        {line}" for line in self.lines),
            returned=", ".join(self.returned) + ("," if len(self.returned) == 1 else ""),
        )

    def cleaned(self) -> Model:
        """Returns the model without inputs and parameters that nothing reads; at least one input stays."""
        words = set(WORD.findall(" ".join([*self.lines, *self.returned])))
        inputs = {name: spec for name, spec in self.inputs.items() if name in words} or dict(
            list(self.inputs.items())[:1]
        )
        return replace(
            self,
            inputs=inputs,
            parameters={name: spec for name, spec in self.parameters.items() if name in words},
        )


@dataclass(frozen=True)
class Made:
    """What a file holds: the module in eval mode, the inputs with their ranges, the targets."""

    module: torch.nn.Module
    inputs: tuple[TensorSpec, ...]
    targets: tuple[str, ...]


def make(text: str) -> Made:
    """Runs a file and builds its model; the source lines are known to tracebacks."""
    name = f"<fuzz {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "fuzz_model"}
    exec(compile(text, name, "exec"), scope)
    specs = tuple(
        replace(spec, low=scope["RANGES"][spec.name][0], high=scope["RANGES"][spec.name][1])
        if spec.name in scope["RANGES"]
        else spec
        for spec in parse_inputs(scope["INPUTS"])
    )
    return Made(scope["Model"]().eval(), specs, tuple(scope["TARGETS"]))


def dims_of(inputs: Mapping[str, TensorSpec]) -> dict[str, Dim]:
    """Returns the dims of all inputs by name."""
    return {dim.name: dim for spec in inputs.values() for dim in spec.dims()}
