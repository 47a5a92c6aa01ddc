"""Defines `Options`, the settings for reading a model, with one field per command-line flag.

Nothing here imports torch, so that a wrong flag is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType

from fuseconv.contract.dtypes import dtype_named
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import RefusedError, UsageError
from fuseconv.untrusted.files import is_plain

TRUST = ("pickle", "torchscript", "native", "code")
DEVICES = ("cpu", "cuda")
FLOATS = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class Options:
    """The settings for reading a model. Every field corresponds to a command-line flag.

    Attributes:
        model: the class or function that builds the module for a state dict: `pkg.mod:factory` or `file.py:factory`.
            None if the source contains the module.
        inputs: one spec per input. Empty to derive the inputs from `inputs_file` or the source.
        inputs_file: the path of a file with one tensor per input. None to generate random tensors.
        input_ranges: maps the name of an input to the range of its random values, both ends included.
        trust: the kinds of code that may run: `pickle`, `torchscript`, `native`, `code`.
        device: the device to convert for: `cpu` or `cuda`.
        dtype: the floating-point dtype to cast the module to: `f64`, `f32`, `f16` or `bf16`, or another usual name of
            one of these, such as `float32`. None keeps the dtypes of the module.
        state: maps the name of an input to the name of the output that is its value in the next call. The first value
            of a state is zero.
        cache_length: the capacity, in tokens, of the key-value cache of a model that generates tokens. None means the
            model's number of positions, up to 2048.
        method: the method or submodule to convert, such as `encode` or `decoder.step`. None means `forward`.
    """

    model: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    inputs_file: Path | None = None
    input_ranges: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    trust: frozenset[str] = frozenset()
    device: str = "cpu"
    dtype: str | None = None
    state: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cache_length: int | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            parse_factory(self.model)
        if unknown := sorted(self.trust.difference(TRUST)):
            raise UsageError(
                f"unknown kind of trust {', '.join(unknown)}", where="--trust", fix=f"use {', '.join(TRUST)}"
            )
        if self.dtype is not None:
            short = dtype_named(self.dtype)
            if short not in FLOATS:
                raise UsageError(f"unknown dtype {self.dtype}", where="--dtype", fix=f"use one of {', '.join(FLOATS)}")
            object.__setattr__(self, "dtype", short)
        if self.device not in DEVICES:
            raise UsageError(f"unknown device {self.device}", where="--device", fix=f"use one of {', '.join(DEVICES)}")

    def flags(self) -> tuple[str, ...]:
        """Returns the command line flags for the fields that differ from their defaults."""
        names = {"inputs": "input", "inputs_file": "inputs", "input_ranges": "input-range"}
        return tuple(
            f"--{names.get(one.name, one.name.replace('_', '-'))}"
            for one in fields(self)
            if getattr(self, one.name) != getattr(Options(), one.name)
        )

    def require_original(self, against: object, *also: str) -> None:
        """Raises an error if options are set without an original model, because they apply only to that model.

        Args:
            against: the original model, or None.
            also: the flags that are set beside those of the fields, and that apply only to the original model too.

        Raises:
            UsageError: a flag is set, and `against` is None.
        """
        if against is None and (flags := (*also, *self.flags())):
            what = f"{flags[0]} applies only to the original model, which is not given"
            raise UsageError(what, where=flags[0], fix="add --against MODEL")

    def require(self, trust: str, what: str, where: str, names: str = "", also: str = "") -> None:
        """Checks that a kind of code is trusted before the source runs code of this kind.

        Args:
            trust: the kind of code, one of `TRUST`.
            what: the part of the source that would run the code, for the error.
            where: the path of the file, for the error.
            names: the functions that the code would call, for the error. Empty if they are not known.
            also: text that is appended to the fix in the error.

        Raises:
            RefusedError: the kind of code is not in `trust`.
        """
        if trust not in self.trust:
            raise RefusedError(
                f"{what} runs code when it is loaded" + (f"; it names {names}" if names else ""),
                where=where,
                fix=f"if you trust its author, add --trust {trust}{also}",
            )


def parse_factory(model: str) -> tuple[str, str]:
    """Splits the text of `--model` into the Python module or file and the name of the factory. Imports nothing.

    Raises:
        UsageError: the text is malformed, or the file does not exist.
    """
    origin, _, name = model.rpartition(":")
    where = f"--model {model}"
    if not origin or not name.isidentifier():
        raise UsageError("the factory cannot be parsed", where=where, fix="write pkg.mod:factory or file.py:factory")
    if origin.endswith(".py") and not is_plain(Path(origin)):
        raise UsageError(f"there is no Python file {origin}", where=where, fix="check the path")
    return origin, name
