"""Maps dtypes to the KServe v2 protocol's datatypes, and those datatypes to NumPy dtypes. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuseconv.contract.spec import Contract
from fuseconv.errors import UnsupportedError

DATATYPES: Mapping[str, str] = {
    "f64": "FP64",
    "f32": "FP32",
    "f16": "FP16",
    "bf16": "BF16",
    "i64": "INT64",
    "i32": "INT32",
    "i16": "INT16",
    "i8": "INT8",
    "u8": "UINT8",
    "bool": "BOOL",
}
"""Maps short dtype names to the protocol's datatypes. The protocol has no complex datatypes."""

SHORT: Mapping[str, str] = {name: short for short, name in DATATYPES.items()}
"""Maps the protocol's datatypes to short dtype names."""

ARRAYS: Mapping[str, np.dtype[np.generic]] = {
    "FP64": np.dtype("<f8"),
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "INT16": np.dtype("<i2"),
    "INT8": np.dtype("i1"),
    "UINT8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Maps the protocol's datatypes to NumPy dtypes. NumPy has no bfloat16, so 16-bit unsigned integers store the bits."""


def datatype_in_file(name: str) -> str:
    """Returns the protocol's datatype for a safetensors dtype: `FP32` for `F32`, `INT8` for `I8`."""
    return DATATYPES[name.lower()]


def check_servable(contract: Contract, bundle: str) -> None:
    """Checks that the protocol has a datatype for every input.

    Raises:
        UnsupportedError: an input is complex.
    """
    for spec in contract.inputs:
        if spec.dtype not in DATATYPES:
            raise no_datatype(spec.dtype, f"input {spec.name}", bundle)


def no_datatype(dtype: str, tensor: str, bundle: str) -> UnsupportedError:
    """Returns the error for a tensor whose dtype the protocol does not support."""
    return UnsupportedError(
        f"the KServe v2 protocol has no datatype for {dtype}, which the {tensor} has",
        where=bundle,
        fix="convert a model that takes and returns the real and imaginary parts as an axis (torch.view_as_real)",
    )
