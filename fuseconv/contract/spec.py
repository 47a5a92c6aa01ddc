"""The input contract: names, dtypes, dims and their ranges, checked on every call.

A contract is written on the command line (`--input 'ids=i64[batch:1..64,seq:2..512]'`), read from an exported program,
stored in the manifest of the bundle, and enforced by the runtime. Nothing here imports torch: only `.dtype`, `.shape`
and `.device` of tensors are used.
"""

from __future__ import annotations

import functools
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseconv.contract.buckets import Buckets
from fuseconv.errors import ContractError, UsageError

DTYPES: Mapping[str, str] = {
    "f64": "torch.float64",
    "f32": "torch.float32",
    "f16": "torch.float16",
    "bf16": "torch.bfloat16",
    "i64": "torch.int64",
    "i32": "torch.int32",
    "i16": "torch.int16",
    "i8": "torch.int8",
    "u8": "torch.uint8",
    "bool": "torch.bool",
    "c64": "torch.complex64",
    "c128": "torch.complex128",
}
"""Short dtype names, as in rules and manifests, to torch's names."""

MAX_ACCEPTED = 4096
"""The number of accepted call signatures that a contract caches."""

SHORT_DTYPES: Mapping[str, str] = {long: short for short, long in DTYPES.items()}

_INPUT = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\]$", re.ASCII)
_DIM = re.compile(
    r"^(?P<name>[A-Za-z_]\w*)(?::(?P<min>\d{1,15})\.\.(?P<max>\d{1,15})(?::(?P<step>\d{1,15}))?)?$", re.ASCII
)
_SIZE = re.compile(r"^[0-9]{1,15}$")
_RESERVED = frozenset({*keyword.kwlist, *("self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree")})
"""Names that the generated code of a graph uses itself."""

_GRAMMAR = (
    "write NAME=DTYPE[DIM,...], where DIM is a number, NAME:MIN..MAX, or NAME:MIN..MAX:STEP for multiples of STEP; "
    "for example --input 'ids=i64[batch:1..64,seq:2..512]'"
)


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension: it has the same size in every input that names it, a multiple of `step` in [min, max].

    `min` and `max` are multiples of `step`.
    """

    name: str
    min: int
    max: int
    step: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.min}..{self.max}" + (f":{self.step}" if self.step > 1 else "")

    def allowed(self, size: int) -> int:
        """Returns the largest allowed size that is not above `size`, or the smallest if all are above."""
        return max(self.min, min(self.max, size) // self.step * self.step)

    def narrowed(self, low: int, high: int, step: int) -> Dim:
        """Returns the dim restricted to sizes within [low, high] that are multiples of `step`. It may be empty."""
        step = math.lcm(self.step, step)
        low, high = max(self.min, low), min(self.max, high)
        return Dim(self.name, -(-low // step) * step, high // step * step, step)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a call: its name, short dtype (`f32`, `i64`) and shape, with static (int) or symbolic (Dim) sizes.

    `low` and `high` bound the random values used for testing, both ends included. They are not checked at run time.
    """

    name: str
    dtype: str
    shape: tuple[int | Dim, ...]
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(str(size) for size in self.shape)}]"

    def dims(self) -> Iterator[Dim]:
        """Yields the symbolic dims of this tensor in order, with repeats."""
        for size in self.shape:
            if isinstance(size, Dim):
                yield size

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the concrete shape for given sizes of the symbolic dims."""
        return tuple(dims[size.name] if isinstance(size, Dim) else size for size in self.shape)


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs of a model: positional tensors in, a tuple of tensors out.

    Attributes:
        inputs: one spec per positional input.
        outputs: the names of the outputs, in order.
        device: `cpu` or `cuda`.
        buckets: the sizes to which a dim may be padded, if that was proved not to change the results.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    device: str = "cpu"
    buckets: Buckets | None = None

    def dims(self) -> dict[str, Dim]:
        """Returns every symbolic dim by name."""
        return {dim.name: dim for spec in self.inputs for dim in spec.dims()}

    def with_dims(self, dims: Mapping[str, Dim]) -> Contract:
        """Returns the contract with the dims of these names replaced."""
        shapes = (
            tuple(dims.get(size.name, size) if isinstance(size, Dim) else size for size in spec.shape)
            for spec in self.inputs
        )
        inputs = tuple(replace(spec, shape=shape) for spec, shape in zip(self.inputs, shapes, strict=True))
        return replace(self, inputs=inputs)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(spec.name for spec in self.inputs)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Checks a call and returns its tensors in positional order.

        It runs on every call of a converted model and is fast: signatures of accepted calls are cached.

        Raises:
            ContractError: the arity, a name, dtype, rank, size, range or tied dim, or the device is wrong.
        """
        tensors = tuple(args) if not kwargs and len(args) == len(self.inputs) else self._ordered(args, kwargs)
        kind = tuple(
            [(getattr(x, "dtype", None), getattr(x, "device", None), getattr(x, "shape", None)) for x in tensors]
        )
        try:
            if kind in self._accepted:
                return tensors
        except TypeError:  # symbolic sizes, while a graph is traced, have no hash
            kind = ()
        sizes: dict[str, tuple[int, str]] = {}
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            self._check(spec, tensor, sizes)
        if kind and len(self._accepted) < MAX_ACCEPTED:
            self._accepted.add(kind)
        return tensors

    @functools.cached_property
    def _accepted(self) -> set[tuple[Any, ...]]:
        """The dtypes, devices and shapes of accepted calls, on which the check depends."""
        return set()

    def _ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        left = self.names[len(args) :]
        if len(kwargs) == len(left) and all(name in kwargs for name in left) and len(args) <= len(self.names):
            return (*args, *(kwargs[name] for name in left))
        given = [f"{len(args)} positional"] * bool(args) + sorted(kwargs)
        raise ContractError(
            f"the model takes {len(self.names)} inputs ({', '.join(self.names)}), "
            f"but the call passes {', '.join(given) or 'none'}",
            where="the call's arguments",
            fix=f"pass {', '.join(str(spec) for spec in self.inputs)}",
        )

    def _check(self, spec: TensorSpec, tensor: Any, sizes: dict[str, tuple[int, str]]) -> None:
        if (found := _short_dtype(getattr(tensor, "dtype", None))) != spec.dtype:
            if not str(getattr(tensor, "dtype", None)).startswith("torch."):
                raise _violation(spec, f"is of type {type(tensor).__name__}, not a torch.Tensor")
            raise _violation(spec, f"has dtype {found}, but the contract says {spec.dtype}")
        device = getattr(tensor, "device", None)
        if (place := getattr(device, "type", device)) != self.device:
            raise _violation(spec, f"is on {place}, but the contract says {self.device}")
        shape = tensor.shape
        if len(shape) != len(spec.shape):
            raise _violation(spec, f"has {len(shape)} dims {list(shape)}, but the contract says {len(spec.shape)}")
        for axis, expected in enumerate(spec.shape):
            size = shape[axis]
            if isinstance(expected, int):
                if size != expected:
                    raise _violation(spec, f"has size {size} at axis {axis}, but the contract says {expected}")
                continue
            first = sizes.get(expected.name)
            if first is None:
                if not expected.min <= size <= expected.max:
                    raise _violation(spec, f"has size {size} at axis {axis}, outside {expected}")
                if expected.step > 1 and size % expected.step != 0:
                    raise _violation(spec, f"has size {size} at axis {axis}, not a multiple of {expected.step}")
                sizes[expected.name] = (size, spec.name)
            elif first[0] != size:
                raise _violation(spec, f"has {expected.name}={size} at axis {axis}, but {first[1]} has {first[0]}")

    def to_json(self) -> dict[str, Any]:
        """Returns the contract as plain JSON values. `from_json` reads it back."""
        return {
            "inputs": [
                {
                    "name": spec.name,
                    "dtype": spec.dtype,
                    "shape": [_size_to_json(size) for size in spec.shape],
                    "low": spec.low,
                    "high": spec.high,
                }
                for spec in self.inputs
            ],
            "outputs": list(self.outputs),
            "device": self.device,
            **({"buckets": self.buckets.to_json()} if self.buckets else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Contract:
        """Reads the values that `to_json` returned."""
        inputs = tuple(
            TensorSpec(
                item["name"],
                item["dtype"],
                tuple(size if isinstance(size, int) else Dim(**size) for size in item["shape"]),
                item["low"],
                item["high"],
            )
            for item in value["inputs"]
        )
        buckets = Buckets.from_json(value["buckets"]) if "buckets" in value else None
        return Contract(inputs, tuple(value["outputs"]), value["device"], buckets)


@functools.cache
def _short_dtype(dtype: object) -> str:
    """Returns the short name of a dtype. It is cached, because printing a dtype is slower than the rest of a check."""
    return SHORT_DTYPES.get(str(dtype), str(dtype))


def _size_to_json(size: int | Dim) -> int | dict[str, int | str]:
    if isinstance(size, int):
        return size
    step = {"step": size.step} if size.step > 1 else {}
    return {"name": size.name, "min": size.min, "max": size.max, **step}


def _violation(spec: TensorSpec, what: str) -> ContractError:
    return ContractError(f"input {spec.name} {what}", where=f"input {spec.name}", fix=f"pass {spec}")


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Parses repeated `--input` values. Dims with the same name are the same dim, and one of them needs the range.

    Raises:
        UsageError: the text is malformed, the dtype is unknown, a range is empty, or a dim has two ranges.
    """
    dims: dict[str, Dim] = {}
    parsed = [_parse_input(text, dims) for text in texts]
    names = [name for name, _, _ in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"input {name} is given twice", where=f"--input {name}", fix="give each input once")
    return tuple(
        TensorSpec(name, dtype, tuple(_resolve(size, dims, name) for size in shape)) for name, dtype, shape in parsed
    )


def _parse_input(text: str, dims: dict[str, Dim]) -> tuple[str, str, list[int | str]]:
    where = f"--input {text!r}"
    match = _INPUT.match(text.replace(" ", ""))
    if match is None:
        raise UsageError("the input specification cannot be parsed", where=where, fix=_GRAMMAR)
    if match["name"] in _RESERVED:
        raise UsageError(f"an input cannot be named {match['name']}", where=where, fix="use another name")
    if match["dtype"] not in DTYPES:
        raise UsageError(f"unknown dtype {match['dtype']}", where=where, fix=f"use one of {', '.join(DTYPES)}")
    shape = [_parse_dim(part, dims, where) for part in match["dims"].split(",")] if match["dims"] else []
    return match["name"], match["dtype"], shape


def _parse_dim(text: str, dims: dict[str, Dim], where: str) -> int | str:
    if _SIZE.match(text):
        return int(text)
    match = _DIM.match(text)
    if match is None or match["name"] in _RESERVED:
        raise UsageError(f"the dim {text!r} cannot be parsed", where=where, fix=_GRAMMAR)
    if match["min"] is not None:
        low, high, step = int(match["min"]), int(match["max"]), int(match["step"] or 1)
        if low > high:
            raise UsageError(f"the range of {text} is empty", where=where, fix=f"write {match['name']}:{high}..{low}")
        dim = Dim(match["name"], low, high).narrowed(low, high, step) if step else None
        if dim is None or dim.min > dim.max:
            raise UsageError(
                f"there is no multiple of {step} in {low}..{high}", where=where, fix="choose another range"
            )
        if dims.setdefault(dim.name, dim) != dim:
            raise UsageError(f"dim {dim.name} has two ranges, {dims[dim.name]} and {dim}", where=where, fix=_GRAMMAR)
    return match["name"]


def _resolve(size: int | str, dims: Mapping[str, Dim], name: str) -> int | Dim:
    if isinstance(size, int):
        return size
    if size not in dims:
        raise UsageError(f"dim {size} has no range", where=f"--input {name}", fix=f"write {size}:MIN..MAX once")
    return dims[size]
