"""Parses the command-line options that declare the inputs, the states and the ranges of random values.

Nothing here imports torch.

Example: `--input 'ids=i64[batch:1..64,seq:2..512]' --input-range ids=0..30521`
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import DTYPES, dtype_named
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import UsageError

_INPUT = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<dtype>[\w.]+)\[(?P<dims>[^\]]*)\]$", re.ASCII)
_DIM = re.compile(
    r"^(?P<name>[A-Za-z_]\w*)(?::(?P<min>\d{1,15})\.\.(?P<max>\d{1,15})(?::(?P<step>\d{1,15}))?)?$", re.ASCII
)
_RANGE = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<low>[^.].*?)\.\.(?P<high>.+)$")
_SHAPE = re.compile(r"^(?P<name>\w+)=(?P<size>\d{1,15})$", re.ASCII)
_SIZE = re.compile(r"^[0-9]{1,15}$")
_RESERVED = frozenset({*keyword.kwlist, *("self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree")})
"""Names that an input or dim cannot have, because the generated code of a graph uses them."""

_MOST_DIMS = 64
"""The maximum number of dims of a tensor in PyTorch."""

_GRAMMAR = (
    "write NAME=DTYPE[DIM,...], where DIM is a number, NAME:MIN..MAX, or NAME:MIN..MAX:STEP for multiples of STEP; "
    "for example --input 'ids=i64[batch:1..64,seq:2..512]'"
)


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Parses the values of repeated `--input` options, and returns one spec per input.

    Dims with the same name are the same dim, whose range must be given at least once.

    Raises:
        UsageError: the text is malformed, the dtype is unknown, a range is empty, or a dim has two ranges.
    """
    dims: dict[str, Dim] = {}
    parsed = [_parse_input(text, dims) for text in texts]
    names = [name for name, _, _ in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"input {name} is given twice", where=f"--input {name}", fix="give each input only once")
    return tuple(
        TensorSpec(name, dtype, tuple(_resolve(size, dims, name) for size in shape)) for name, dtype, shape in parsed
    )


def parse_states(texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of repeated `--state` options, such as `cache=new_cache`.

    Returns a map from the name of each input to the name of the output that is its value in the next call.

    Raises:
        UsageError: a text is malformed, or an input is given twice.
    """
    states: dict[str, str] = {}
    for text in texts:
        name, _, output = text.replace(" ", "").partition("=")
        if not name or not output or name in states:
            fix = "write INPUT=OUTPUT, once for each input, for example --state cache=new_cache"
            raise UsageError(
                f"the state {text!r} cannot be parsed, or its input is given twice", where=f"--state {text!r}", fix=fix
            )
        states[name] = output
    return states


def parse_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parses the values of repeated `--input-range` options, for example `ids=0..30521`.

    Returns a map from the name of each input to the ends of its range, both included.

    Raises:
        UsageError: a text is malformed, or its range is empty.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        where = f"--input-range {text!r}"
        match = _RANGE.match(text.replace(" ", ""))
        try:
            bounds = (float(match["low"]), float(match["high"])) if match else None
        except ValueError:
            bounds = None
        if match is None or bounds is None or not all(map(math.isfinite, bounds)):
            raise UsageError(
                "the range cannot be parsed", where=where, fix="write NAME=LOW..HIGH, for example ids=0..30521"
            )
        if bounds[0] > bounds[1]:
            raise UsageError(
                "the range is empty", where=where, fix=f"write {match['name']}={bounds[1]:g}..{bounds[0]:g}"
            )
        if ranges.setdefault(match["name"], bounds) != bounds:
            raise UsageError(f"input {match['name']} has two ranges", where=where, fix="give only one of them")
    return ranges


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Parses the values of all `--shape` options, for example `seq=128`. Returns the size of each dim by name.

    Raises:
        UsageError: a value is malformed, or a dim is given two sizes.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        match = _SHAPE.match(text)
        if match is None:
            raise UsageError(
                "the size cannot be parsed", where=f"--shape {text!r}", fix="write DIM=SIZE, for example seq=128"
            )
        if sizes.setdefault(match["name"], int(match["size"])) != int(match["size"]):
            raise UsageError(
                f"the dim {match['name']} has two sizes", where=f"--shape {text!r}", fix="give only one of them"
            )
    return sizes


def _parse_input(text: str, dims: dict[str, Dim]) -> tuple[str, str, list[int | str]]:
    where = f"--input {text!r}"
    match = _INPUT.match(text.replace(" ", ""))
    if match is None:
        raise UsageError("the input specification cannot be parsed", where=where, fix=_GRAMMAR)
    if match["name"] in _RESERVED:
        raise UsageError(
            f"an input cannot be named {match['name']}", where=where, fix="rename the input: this name is reserved"
        )
    dtype = dtype_named(match["dtype"])
    if dtype is None:
        raise UsageError(f"unknown dtype {match['dtype']}", where=where, fix=f"use one of {', '.join(DTYPES)}")
    shape = [_parse_dim(part, dims, where) for part in match["dims"].split(",")] if match["dims"] else []
    if len(shape) > _MOST_DIMS:
        what = f"input {match['name']} has {len(shape)} dims, and a tensor of PyTorch at most {_MOST_DIMS}"
        raise UsageError(what, where=where, fix="give fewer dims")
    return match["name"], dtype, shape


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
        raise UsageError(f"dim {size} has no range", where=f"--input {name}", fix=f"write {size}:MIN..MAX in one place")
    return dims[size]
