"""Generates random tensors for sample calls, in layouts that are difficult for kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Draw:
    """Generates normally distributed random tensors of one device and dtype, which are the same on every run.

    Args:
        device: the device of the tensors.
        dtype: the dtype of the tensors.
        seed: the seed of the random generator.
    """

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Returns a contiguous tensor whose elements have a standard deviation of `scale`."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale
        return values.to(self.dtype).to(self.device)

    def permuted(self, *shape: int) -> Tensor:
        """Returns a tensor whose first dim is the innermost in memory, and whose last dim is the outermost."""
        return self(*reversed(shape)).permute(*reversed(range(len(shape))))

    def across(self, *shape: int) -> Tensor:
        """Returns a tensor whose second-to-last dim is the innermost in memory."""
        return self(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)

    def strided(self, *shape: int) -> Tensor:
        """Returns a view with a stride of 2 elements along the last dim."""
        return self(*shape[:-1], 2 * shape[-1])[..., ::2]

    def padded(self, *shape: int) -> Tensor:
        """Returns a view whose rows are contiguous but separated by 3 elements in memory."""
        return self(*shape[:-1], shape[-1] + 3)[..., : shape[-1]]

    def unaligned(self, *shape: int) -> Tensor:
        """Returns a contiguous tensor that starts one element after an aligned address."""
        count = 1
        for size in shape:
            count *= size
        return self(count + 1)[1:].view(shape)

    def broadcast_tuples(self, arity: int) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
        """Yields named tuples of `arity` tensors that broadcast together, in layouts that are difficult for kernels."""
        dense = [self(2, 3, 37) for _ in range(arity)]
        yield "dense", tuple(dense)
        yield "scalars", tuple(self() for _ in range(arity))
        yield "one_element", tuple(self(1, 1) for _ in range(arity))
        yield "empty", tuple(self(3, 0, 2) for _ in range(arity))
        yield "long", tuple(self(5003) for _ in range(arity))
        yield "threads", tuple(self(17, 4099) for _ in range(arity))
        yield "last_dim", (self(4, 5, 6), *(self(6) for _ in range(arity - 1)))
        yield "first_is_smaller", (self(5, 1), *(self(3, 5, 33) for _ in range(arity - 1)))
        yield "both_broadcast", (self(7, 1), *(self(1, 9) for _ in range(arity - 1)))
        yield "with_scalar", (self(4, 33), *(self() for _ in range(arity - 1)))
        yield "channels", (self(2, 8, 5, 5), *(self(8, 1, 1) for _ in range(arity - 1)))
        yield "permuted", tuple(self.permuted(3, 4, 5) for _ in range(arity))
        yield "one_permuted", (self(6, 35), *(self.permuted(6, 35) for _ in range(arity - 1)))
        yield "across", (self(2, 130, 70), *(self.across(2, 130, 70) for _ in range(arity - 1)))
        yield "odd_across", (self(2, 131, 67), *(self.across(2, 131, 67) for _ in range(arity - 1)))
        yield "odd_permuted", (self(19, 3, 67), *(self.permuted(19, 3, 67) for _ in range(arity - 1)))
        yield "strided", tuple(self.strided(4, 21) for _ in range(arity))
        yield "unaligned", tuple(self.unaligned(5, 67) for _ in range(arity))
        yield "expanded", (self(1, 33).expand(4, 33), *(self(4, 1).expand(4, 33) for _ in range(arity - 1)))
        yield "channels_last", tuple(self(2, 4, 5, 6).to(memory_format=torch.channels_last) for _ in range(arity))
        same = self(3, 11)
        yield "same_tensor", (same,) * arity
