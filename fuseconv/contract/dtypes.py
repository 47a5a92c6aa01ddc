"""The dtypes of tensors in calls, rules and manifests, by short names such as `f32`.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
"""Maps each short dtype name, as used in rules and manifests, to torch's name."""

SHORT_DTYPES: Mapping[str, str] = {long: short for short, long in DTYPES.items()}

_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "f64": ("fp64", "double"),
    "f32": ("fp32", "float"),
    "f16": ("fp16", "half"),
    "i64": ("long",),
    "i32": ("int",),
    "i16": ("short",),
    "c64": ("cfloat",),
    "c128": ("cdouble",),
}
"""Maps a short dtype name to other names that PyTorch and other tools use for the dtype."""

_NAMED: Mapping[str, str] = {
    name: short
    for short, long in DTYPES.items()
    for name in (short, long, long.removeprefix("torch."), *_OTHER_NAMES.get(short, ()))
}

_SHORT: dict[object, str] = {}


def dtype_named(name: str) -> str | None:
    """Returns the short name of the dtype with this name, or None if the name is unknown.

    For example, `f32`, `float32`, `torch.float32`, `fp32` and `float` all map to `f32`.
    """
    return _NAMED.get(name)


def names_of(shorts: Iterable[str]) -> tuple[str, ...]:
    """Returns the short names of these dtypes, then their other names without the prefix `torch.`."""
    shorts = tuple(shorts)
    return (*shorts, *(name for name, short in _NAMED.items() if short in shorts and name != short and "." not in name))


def short_dtype(dtype: object) -> str:
    """Returns the short name of a dtype, or its full name, such as `torch.uint16`, if it has no short name.

    The names are cached, because converting a dtype to text is slower than the rest of a contract check. The cache is a
    dict, because torch.compile warns about `functools.cache`.
    """
    short = _SHORT.get(dtype)
    if short is None:
        short = _SHORT[dtype] = SHORT_DTYPES.get(str(dtype), str(dtype))
    return short
