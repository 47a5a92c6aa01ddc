"""Checks one tensor of a call: its dtype, device, rank and sizes.

Every call of a bundle or fused module runs this check. Nothing here imports torch: the check reads only the `.dtype`,
`.shape` and `.device` of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuseconv.contract.dims import Size
from fuseconv.contract.dtypes import short_dtype
from fuseconv.errors import ContractError

Values = dict[str, tuple[int, str]]
"""Maps the name of each dim found so far in a call to its value and the name of the tensor that determined it."""


@dataclass(frozen=True)
class Expected:
    """The tensor that a call must pass as one input, parameter or buffer.

    Attributes:
        name: the name of the tensor.
        dtype: the short name of the dtype, or torch's name if it has no short name.
        device: the type of the device, for example `cuda`.
        shape: the size of each axis, static or symbolic. All sizes that name the same dim must agree on its value.
        fix: the fix in the error message.
        role: the word for the tensor in the error message: `input`, `parameter` or `buffer`.
    """

    name: str
    dtype: str
    device: str
    shape: tuple[Size, ...]
    fix: str
    role: str = "input"

    def check(self, tensor: Any, values: Values) -> None:
        """Checks the dtype, device, rank and sizes of one tensor of a call.

        Args:
            tensor: the value that the call passes.
            values: the dims that earlier tensors of the call determined. The dims of this tensor are added.

        Raises:
            ContractError: the value is not a tensor, differs from this specification, or its size implies another
                value of a dim than an earlier tensor.
        """
        found = getattr(tensor, "dtype", None)
        if (dtype := short_dtype(found)) != self.dtype:
            if not str(found).startswith("torch."):
                raise self.no_tensor(tensor)
            raise self.error(f"has dtype {dtype}, but the contract says {self.dtype}")
        device = getattr(tensor, "device", None)
        if (place := getattr(device, "type", device)) != self.device:
            raise self.error(f"is on {place}, but the contract says {self.device}")
        shape = tensor.shape
        if len(shape) != len(self.shape):
            raise self.error(f"has {len(shape)} dims {list(shape)}, but the contract says {len(self.shape)}")
        for axis, (size, expected) in enumerate(zip(shape, self.shape, strict=True)):
            if isinstance(expected, int):
                if size != expected:
                    raise self.error(f"has size {size} at axis {axis}, but the contract says {expected}")
                continue
            value, first = expected.value(size), values.get(expected.name)
            if value is None or (first is None and expected.refusal(size)):
                raise self.error(f"has size {size} at axis {axis}, {expected.refusal(size)}")
            if first is None:
                values[expected.name] = (value, self.name)
            elif first[0] != value:
                raise self.error(f"has {expected.name}={value} at axis {axis}, but {first[1]} has {first[0]}")

    def no_tensor(self, value: object) -> ContractError:
        """Returns the error for a passed value that is not a tensor."""
        return self.error(f"is of type {type(value).__name__}, not a torch.Tensor")

    def error(self, what: str) -> ContractError:
        """Returns an error about the passed value.

        Args:
            what: the predicate of a sentence such as "input x has dtype f16", without the subject.
        """
        place = f"{self.role} {self.name}"
        return ContractError(f"{place} {what}", where=place, fix=self.fix)
