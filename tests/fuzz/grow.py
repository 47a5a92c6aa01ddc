"""Grows a random model line by line: each line is run at several sizes before it is kept."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import torch_dtype
from fuseconv.contract.spec import TensorSpec

from .program import Model

FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
_LIMIT = 300.0
"""The largest magnitude of a value: far from what overflows f16 when it is squared and summed."""


@dataclass
class Value:
    """A value of the model, at each of the sizes tried.

    Attributes:
        name: the variable.
        at: one tensor for each of the sizes.
        exact: whether no rounding went into it, so that it may be compared and floored.
    """

    name: str
    at: tuple[torch.Tensor, ...]
    exact: bool = False

    @property
    def one(self) -> torch.Tensor:
        """It at the first sizes."""
        return self.at[0]


class Grower:
    """A model that grows.

    Args:
        draw: where every choice comes from.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.dims: dict[str, Dim] = {}
        self.sizes: list[dict[str, int]] = [{}, {}, {}]
        self.inputs: dict[str, TensorSpec] = {}
        self.parameters: dict[str, TensorSpec] = {}
        self.lines: list[str] = []
        self.pool: list[Value] = []
        self.namespaces = [SimpleNamespace() for _ in self.sizes]
        self.frames: list[dict[str, Any]] = [
            {"torch": torch, "F": functional, "self": owner} for owner in self.namespaces
        ]
        self.count = 0
        self.dtype = draw.choice(FLOATS)

    def dim(self, at: int) -> Dim:
        """Returns the dim of a number, made when it is first asked for."""
        name = f"n{at}"
        if name not in self.dims:
            low = self.draw.choice((0, 1, 1, 1, 1, 2))
            self.dims[name] = Dim(name, low, self.draw.choice((6, 8, 9, 17)))
            for sizes, size in zip(self.sizes, ((3, 5, 6, 4)[at % 4], (2, 6, 3, 5)[at % 4], low), strict=True):
                sizes[name] = size
        return self.dims[name]

    def name(self) -> str:
        """Returns a name that is not taken."""
        self.count += 1
        return f"v{self.count}"

    def add_input(self, spec: TensorSpec) -> Value:
        """Declares an input and returns it."""
        name = f"x{len(self.inputs)}"
        if spec.dtype in ("i64", "i32", "i16", "i8", "u8") and spec.low is None:
            spec = replace(spec, low=0, high=8)
        self.inputs[name] = replace(spec, name=name)
        tensors = tuple(
            _drawn(self.inputs[name], self.inputs[name].sizes(sizes), seed) for seed, sizes in enumerate(self.sizes)
        )
        for frame, tensor in zip(self.frames, tensors, strict=True):
            frame[name] = tensor
        self.pool.append(Value(name, tensors, exact=True))
        return self.pool[-1]

    def add_parameter(self, dtype: str, shape: Sequence[int]) -> str:
        """Declares a parameter and returns the expression for it."""
        name = f"p{len(self.parameters)}"
        self.parameters[name] = TensorSpec(name, dtype, tuple(shape))
        tensor = _drawn(self.parameters[name], tuple(shape), len(self.parameters)) * (
            0.5 if torch_dtype(dtype).is_floating_point else 1
        )
        for owner in self.namespaces:
            setattr(owner, name, tensor)
        return f"self.{name}"

    def add(
        self, expression: str, name: str | None = None, *, exact: bool = False, pooled: bool = True
    ) -> Value | None:
        """Adds `name = expression` if it can be run at all sizes and gives a tensor of tame values; else None."""
        name = name or self.name()
        values = []
        for frame in self.frames:
            try:
                with torch.no_grad():
                    values.append(eval(expression, frame))
            except Exception:  # noqa: BLE001 - no program: what torch raises at a line of random operands
                return None
        if not all(_tame(value) for value in values):
            return None
        self.lines.append(f"{name} = {expression}")
        for frame, value in zip(self.frames, values, strict=True):
            frame[name] = value
        found = Value(name, tuple(values), exact)
        if pooled and isinstance(values[0], torch.Tensor):
            self.pool.append(found)
        return found

    def run(self, statement: str) -> bool:
        """Adds a statement that writes in place, if it can be run at all sizes."""
        for frame in self.frames:
            try:
                with torch.no_grad():
                    exec(statement, frame)
            except Exception:  # noqa: BLE001 - as above
                return False
        self.lines.append(statement)
        return True

    def choose(self, wanted: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """Returns a value, later ones more often."""
        fits = [value for value in self.pool if wanted(value)]
        return self.draw.choices(fits, [1 + at for at in range(len(fits))])[0] if fits else None

    def finish(self, targets: Sequence[str]) -> Model:
        """Returns the model, with several of the values returned, some twice; what is left over is dead."""
        made = [value for value in self.pool if value.name.startswith("v")] or self.pool
        last = made[-1]
        count = self.draw.choice((1, 1, 2, 2, 3, 4))
        chosen = [last, *self.draw.choices(made, k=count - 1)]
        if self.draw.random() < 0.1:
            chosen.append(self.draw.choice(chosen))
        if self.draw.random() < 0.05:
            chosen.append(self.draw.choice(self.pool))
        self.draw.shuffle(chosen)
        names = tuple(value.name for value in chosen)
        return Model(self.inputs, self.parameters, tuple(self.lines), names, tuple(targets)).cleaned()


def _drawn(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    dtype = torch_dtype(spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=draw, dtype=wide).to(dtype)
    high = 2 if dtype == torch.bool else int(spec.high if spec.high is not None else 8) + 1
    return torch.randint(int(spec.low or 0), high, shape, generator=draw).to(dtype)


def _tame(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return bool(value) and all(_tame(one) for one in value)
    if not isinstance(value, torch.Tensor) or value.numel() > 20_000 or value.dim() > 6:
        return False
    if value.dtype.is_floating_point and value.numel():
        return bool(value.isfinite().all()) and float(value.abs().max()) < _LIMIT
    return True


HOLE = re.compile(r"\{(\w+)\}")


def filled(grower: Grower, template: str) -> tuple[str, Mapping[str, Value]] | None:
    """Fills the holes of a template with values and numbers.

    Holes: `f` a floating value, `g` one of its dtype and shape, `h` one of its dtype, `i` an integer value, `b` a
    boolean one, `e` an exact one, `a` anything; `d` an axis of `f`, `c` its last size, `k` a small number, `r` a real
    one; `P` a parameter of `f`'s last size, `W` a matrix of it, `V` the vector that goes with the matrix.
    """
    draw, taken, words = grower.draw, {}, {}
    f = grower.choose(lambda value: _is_float(value) and (value.one.dim() > 0 or "{d}" not in template))
    wanted: dict[str, Callable[[Value], bool]] = {
        "g": lambda value: _alike(value, f) and value is not f,
        "h": lambda value: _is_float(value) and value.one.dtype == f.one.dtype if f else False,
        "i": lambda value: not _is_float(value) and value.one.dtype != torch.bool and not value.one.is_complex(),
        "b": lambda value: value.one.dtype == torch.bool,
        "e": lambda value: value.exact,
        "a": lambda _: True,
    }
    holes = HOLE.findall(template)
    for hole in dict.fromkeys(holes):
        if hole in wanted or hole == "f":
            value = f if hole == "f" else grower.choose(wanted[hole])
            if value is None and hole == "g":
                value = f
            if value is None:
                return None
            taken[hole], words[hole] = value, value.name
        elif hole in "dcPWV":
            if f is None or f.one.dim() == 0:
                return None
            last, dtype = f.one.shape[-1], _short(f.one.dtype)
            if hole in "cPWV" and any(value.shape[-1] != last for value in f.at):
                return None  # a symbolic size has no parameters
            if hole in "PWV" and last > 64:
                return None
            out = words.setdefault("out", str(draw.choice((4, 8, 8, 6, 16))))
            match hole:
                case "d":
                    words[hole] = str(draw.randrange(-f.one.dim(), f.one.dim()))
                case "c":
                    words[hole] = str(last)
                case "P":
                    words[hole] = grower.add_parameter(dtype, [last])
                case "W":
                    words[hole] = grower.add_parameter(dtype, [int(out), last])
                case "V":
                    words[hole] = grower.add_parameter(dtype, [int(out)])
        elif hole == "k":
            words[hole] = str(draw.choice((0, 1, 1, 2, 2, 3, -1)))
        elif hole == "r":
            words[hole] = repr(draw.choice((0.5, 2.0, -1.0, 1.0, 0.125, 1e-3, 3.7, 0.0)))
    return HOLE.sub(lambda hole: words[hole[1]], template), taken


def _is_float(value: Value) -> bool:
    return isinstance(value.one, torch.Tensor) and value.one.dtype.is_floating_point


def _alike(value: Value, other: Value | None) -> bool:
    return (
        other is not None
        and value.one.dtype == other.one.dtype
        and [one.shape for one in value.at if isinstance(one, torch.Tensor)] == [one.shape for one in other.at]
    )


def _short(dtype: torch.dtype) -> str:
    return {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}.get(dtype, "f32")
