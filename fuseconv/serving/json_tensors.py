"""Converts between NumPy arrays and tensors in JSON, whose numbers are flat in row-major order or nested. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from fuseconv.serving.datatypes import ARRAYS
from fuseconv.serving.refusals import NotFiniteError, RequestError

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES: Mapping[str, frozenset[type]] = {"BOOL": frozenset({bool}), "FP": frozenset({int, float})}
"""The Python types that a parsed JSON value may have, for each kind of datatype. Other datatypes accept only int."""


def array_of(data: list[Any], datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Converts the values of a JSON tensor to an array.

    Args:
        data: the values, flat or nested.
        datatype: the protocol's datatype of the tensor.
        shape: the shape of the tensor, which the contract allows.
        where: the name of the tensor for error messages.

    Raises:
        RequestError: a value has the wrong type, a value is out of the datatype's range, or the number or nesting of
            the values does not fit the shape.
    """
    if datatype == "BF16":
        raise RequestError(
            "BF16 cannot be represented in JSON", where=where, fix="send the tensor as binary data (binary_data_size)"
        )
    values = _flat(data, shape, where)
    allowed = _TYPES.get(datatype.rstrip("0123456789"), frozenset({int}))
    if wrong := set(map(type, values)) - allowed:
        names = ", ".join(sorted("null" if kind is type(None) else kind.__name__ for kind in wrong))
        raise RequestError(f"the data contains values of type {names}", where=where, fix=f"send numbers of {datatype}")
    with np.errstate(over="ignore"):
        try:
            if datatype.startswith("FP"):
                array = np.array(values, np.float64).astype(ARRAYS[datatype])
                fits = bool(np.isfinite(array).all())
            else:
                array = np.array(values, ARRAYS[datatype])
                fits = True
        except OverflowError:
            fits = False
    if not fits:
        raise RequestError(
            f"a number is out of the range of {datatype}", where=where, fix="send numbers within the range"
        )
    return array.reshape(shape)


def _flat(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Flattens the values in row-major order. Does not use NumPy, which would pad all strings to the same length."""
    values, fits = data, True
    if data and isinstance(data[0], list):
        fits = bool(shape) and len(data) == shape[0]
        for size in shape[1:]:
            fits = fits and set(map(type, values)) <= {list} and set(map(len, values)) <= {size}
            values = list(chain.from_iterable(values)) if fits else values
    if not fits or len(values) != math.prod(shape):
        what = f"the data does not have the shape {list(shape)}, which needs {math.prod(shape)} numbers"
        raise RequestError(what, where=where, fix="send a flat list in row-major order, or lists nested like the shape")
    return values


def numbers_of(array: Array, datatype: str, where: str, fix: str) -> Array:
    """Returns the values of an array as a flat array in row-major order, which the JSON serializer accepts.

    Args:
        array: the values.
        datatype: the datatype of the protocol, such as `BF16`, whose values are stored as 16-bit integers.
        where: what the array is, such as `output y`, for the error.
        fix: how to exchange the array as binary data instead, for the error.

    Raises:
        NotFiniteError: the array contains NaN or infinities.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise NotFiniteError(
            f"the {where} contains NaN or infinities, which JSON cannot represent",
            where=where,
            fix=fix,
        )
    return flat
