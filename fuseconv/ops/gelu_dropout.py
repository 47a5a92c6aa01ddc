"""gelu_dropout: dropout of gelu(x) with a mask that is computed from a seed.

The op is a pure function: for the same shape, seed and p, `gelu_dropout(x, seed, p)` uses the same mask on every call,
whatever the device, dtype and layout of x. Models call `gelu_with_dropout(x, p, training)`, which generates the seed.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import activate_backward
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def gelu_with_dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Returns dropout(gelu(x), p, training).

    The mask is random. It depends on the default random generator of x's device, so that `torch.manual_seed` makes it
    reproducible, and each replay of a CUDA graph uses a new mask. Under torch.autocast, x keeps its dtype.

    Args:
        x: of any shape; float64, float32, float16 or bfloat16.
        p: the probability that an element becomes 0, rounded to a multiple of 2^-16. All other elements are divided by
            1 - p.
        training: whether dropout is applied. If False, the result is gelu(x).

    Returns:
        A tensor with the shape and dtype of x.

    Raises:
        RuntimeError: p is not between 0 and 1.

    Examples:
        >>> x = torch.tensor([0.0, 1.0])
        >>> fuseconv.ops.gelu_with_dropout(x, 0.1, training=False)
        tensor([0.0000, 0.8413])
    """
    if not training:
        return functional.gelu(x)
    seed = torch.randint(2**63 - 1, (1,), device=x.device)
    result: Tensor = gelu_dropout(x, seed, p)
    return result


def reference(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """gelu(x) * keep / (1 - p), where keep is 0 with probability p and 1 otherwise.

    The random bits come from Philox 4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with
    the key `seed`. The element with index i in row-major order uses the counter i // 8, whose four 32-bit words are
    eight 16-bit halves, the lower half of each word first. The element uses half i % 8, and becomes 0 if this half is
    less than p * 2^16, rounded.

    Args:
        x: of any shape.
        seed: the seed of the mask, an int64 tensor with one element.
        p: the probability that an element becomes 0, from 0 to 1.

    Returns:
        A tensor with the shape of x.

    Examples:
        >>> x, seed = torch.ones(100), torch.tensor(7)
        >>> torch.equal(fuseconv.ops.gelu_dropout(x, seed, 0.5), fuseconv.ops.gelu_dropout(x, seed, 0.5))
        True
    """
    index = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    words = _philox(index // 8, seed.reshape(()))
    place = index % 8 // 2
    word = torch.where(
        place < 2, torch.where(place == 0, words[0], words[1]), torch.where(place == 2, words[2], words[3])
    )
    drawn = torch.where(index % 2 == 0, word % _HALF, word // _HALF)
    keep = drawn >= (_HALF if p == 1 else min(int(p * _HALF + 0.5), _HALF - 1))
    return functional.gelu(x) * keep.to(x.dtype) * (1 / (1 - p) if p != 1 else 0.0)


_WORD = 2**32
_HALF = 2**16


def _philox(counter: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the four random 32-bit words for each counter, as int64. The upper 64 bits of each counter are 0."""
    zero = torch.zeros_like(counter)
    x, y, z, w = counter % _WORD, counter // _WORD, zero, zero
    key0, key1 = key % _WORD, torch.div(key, _WORD, rounding_mode="floor") % _WORD
    for _ in range(7):
        (p_high, p_low), (q_high, q_low) = _product(0xD2511F53, x), _product(0xCD9E8D57, z)
        x, y, z, w = q_high ^ y ^ key0, q_low, p_high ^ w ^ key1, p_low
        key0, key1 = (key0 + 0x9E3779B9) % _WORD, (key1 + 0xBB67AE85) % _WORD
    return x, y, z, w


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the upper and the lower 32 bits of a * b, computed in 16-bit halves so that int64 does not overflow."""
    low = a * (b % _HALF)
    high = a * (b // _HALF) + low // _HALF
    return high // _HALF, high % _HALF * _HALF + low % _HALF


def keep(arguments: SimpleNamespace, _: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the arguments, from which the backward recomputes the mask."""
    return vars(arguments)


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:  # noqa: ARG001  # only x has one
    """Returns the gradient with respect to x."""
    # gelu(32) is exactly 32 in every dtype, so the op on a tensor of 32s returns 32 times each element's factor.
    factors = gelu_dropout(kept.x.new_full((), 32.0).expand(kept.x.shape), kept.seed, kept.p) / 32
    return {"x": activate_backward(grad * factors, kept.x, "gelu")}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    seeds = [torch.tensor([number], device=device) for number in (0, 1, -1, 2**62 + 12345, -(2**63))]
    seed = seeds[3]
    return [
        *(Sample(f"seed_{index}", (draw(6, 35), own, 0.25)) for index, own in enumerate(seeds)),
        *(Sample(f"p_{p}", (draw(6, 35), seed, p)) for p in (0.0, 1e-3, 0.9, 1.0)),
        Sample("seed_of_no_dims", (draw(9), seed[0], 0.5)),
        Sample("scalar", (draw(), seed, 0.5)),
        Sample("empty", (draw(3, 0, 2), seed, 0.5)),
        Sample("odd", (draw(5, 67), seed, 0.5)),
        Sample("aligned", (draw(5, 64), seed, 0.5)),
        Sample("threads", (draw(33, 2051), seed, 0.1)),
        Sample("permuted", (draw.permuted(3, 8, 5), seed, 0.5)),
        Sample("strided", (draw.strided(4, 10), seed, 0.5)),
        Sample("padded", (draw.padded(4, 40), seed, 0.5)),
        Sample("unaligned", (draw.unaligned(4, 40), seed, 0.5)),
        Sample("expanded", (draw(1, 40).expand(6, 40), seed, 0.5)),
        Sample("channels_last", (draw(2, 4, 5, 6).to(memory_format=torch.channels_last), seed, 0.5)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    x, seed = Draw(device, torch.float32)(6), torch.zeros(1, dtype=torch.int64, device=device)
    return [
        Sample("p_above", (x, seed, 1.5), matches=r"p must be from 0 to 1, but is 1\.5"),
        Sample("p_below", (x, seed, -0.1), matches=r"p must be from 0 to 1, but is -0\.1"),
        Sample("p_nan", (x, seed, float("nan")), matches="p must be from 0 to 1, but is -?nan"),
        Sample("two_seeds", (x, seed.expand(2), 0.5), matches=r"one element, but has the shape \[2\]"),
        Sample("seed_dtype", (x, x[:1], 0.5), matches="seed must be an int64 tensor of one element"),
        Sample("integers", (x.int(), seed, 0.5), matches="x must be float64, float32, float16 or bfloat16"),
    ]


def like(x: Tensor, seed: Tensor, p: float) -> Tensor:  # noqa: ARG001  # the mask has x's shape
    """Returns a tensor with the dtype, shape and strides of the result, without the 200 ops that compute the mask."""
    return functional.gelu(x)


gelu_dropout = Op("gelu_dropout", reference, samples, errors, Gradient(keep, backward), like=like)
