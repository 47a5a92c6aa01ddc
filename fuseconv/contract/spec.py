"""The input contract: names, dtypes, dims and their ranges, checked on every call.

A contract comes from the command line (`--input 'ids=i64[batch:1..64,seq:2..512]'`) or from an exported program. The
manifest of the bundle stores it, and the runtime enforces it. Nothing here imports torch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.dims import Dim
from fuseconv.contract.expected import Expected, Values
from fuseconv.errors import ContractError

MAX_ACCEPTED = 4096
"""The maximum number of accepted call signatures that a contract caches."""


@dataclass(frozen=True)
class TensorSpec:
    """The specification of one input tensor.

    Attributes:
        name: the name of the input.
        dtype: the short name of the dtype, such as `f32` or `i64`.
        shape: the size of each axis: static (int) or symbolic (Dim).
        low: the smallest random value that is generated for tests. None if there is no bound. Not checked at run time.
        high: the largest random value that is generated for tests. None if there is no bound. Not checked at run time.
    """

    name: str
    dtype: str
    shape: tuple[int | Dim, ...]
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(str(size) for size in self.shape)}]"

    def dims(self) -> Iterator[Dim]:
        """Yields the symbolic dims of this tensor in axis order; a dim of several axes is yielded several times."""
        for size in self.shape:
            if isinstance(size, Dim):
                yield size

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the concrete shape, given the size of each symbolic dim by name."""
        return tuple(dims[size.name] if isinstance(size, Dim) else size for size in self.shape)


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs of a model: positional tensors in, a tuple of tensors out.

    Attributes:
        inputs: one spec per positional input.
        outputs: the names of the outputs, in order.
        device: `cpu` or `cuda`.
        buckets: the sizes to which one dim may be padded, if padding was proved not to change the results. None if no
            dim is padded.
        state: pairs of an input and the output that is its value in the next call, such as
            `("past_key", "present_key")`. The first value of a state is zero.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    device: str = "cpu"
    buckets: Buckets | None = None
    state: tuple[tuple[str, str], ...] = ()

    def dims(self) -> dict[str, Dim]:
        """Returns every symbolic dim of the inputs by name."""
        return {dim.name: dim for spec in self.inputs for dim in spec.dims()}

    def with_dims(self, dims: Mapping[str, Dim]) -> Contract:
        """Returns the contract with each dim whose name is in `dims` replaced by the dim there."""
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
        """Checks the arguments of a call and returns its tensors in positional order.

        The check runs on every call of a converted model. It is fast, because the signatures of accepted calls are
        cached.

        Raises:
            ContractError: the number or names of the arguments are wrong; or a tensor has a wrong dtype, device, rank
                or size; or the sizes of two axes imply different values of a dim.
        """
        tensors = tuple(args) if not kwargs and len(args) == len(self.inputs) else self._ordered(args, kwargs)
        kind = tuple(
            [(getattr(x, "dtype", None), getattr(x, "device", None), getattr(x, "shape", None)) for x in tensors]
        )
        try:
            if kind in self._accepted:
                return tensors
        except TypeError:  # symbolic sizes cannot be hashed while a graph is traced
            kind = ()
        values: Values = {}
        for expected, tensor in zip(self._expected, tensors, strict=True):
            expected.check(tensor, values)
        if kind and len(self._accepted) < MAX_ACCEPTED:
            self._accepted.add(kind)
        return tensors

    @functools.cached_property
    def _expected(self) -> tuple[Expected, ...]:
        return tuple(Expected(spec.name, spec.dtype, self.device, spec.shape, f"pass {spec}") for spec in self.inputs)

    @functools.cached_property
    def _accepted(self) -> set[tuple[Any, ...]]:
        """The input signatures of accepted calls: the dtype, device and shape of each tensor."""
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

    def to_json(self) -> dict[str, Any]:
        """Returns the contract as a dict of JSON values, which `from_json` parses."""
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
            **({"state": dict(self.state)} if self.state else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Contract:
        """Parses the dict that `to_json` returned."""
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
        state = tuple((str(name), str(output)) for name, output in value.get("state", {}).items())
        return Contract(inputs, tuple(value["outputs"]), value["device"], buckets, state)


def _size_to_json(size: int | Dim) -> int | dict[str, int | str]:
    if isinstance(size, int):
        return size
    step = {"step": size.step} if size.step > 1 else {}
    return {"name": size.name, "min": size.min, "max": size.max, **step}
