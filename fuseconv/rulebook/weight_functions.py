"""The functions of rules about the weights of products. As in predicates.py, each function imports torch itself."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.graph.proved_sizes import same_size, same_sizes
from fuseconv.graph.typical_sizes import typical
from fuseconv.rulebook.functions import Constants, rule_function
from fuseconv.rulebook.operands import FROM_WEIGHT, fake_of
from fuseconv.rulebook.refused import Refused, text_of

_LARGE = {"f16": 2**27, "bf16": 2**27, "f32": 2**25}
"""The number of products of two elements from which aligned rows save more time than it takes to copy x once."""

_PARTS = {
    "aten.view.default",
    "aten.reshape.default",
    "aten.slice.Tensor",
    "aten.unflatten.int",
    "aten.unsqueeze.default",
    "aten.transpose.int",
    "aten.permute.default",
    "aten.scaled_dot_product_attention.default",
    "aten.cat.default",
}
"""The ops that read a part of a wider row without a copy, or copy it in any case."""


@rule_function(tensors=False, shapes=True)
def scales_channels(constants: Constants, factor: Any, weight: Any) -> None:
    """A constant factor per output channel of the weight, or a number for all; the product is exact up to rounding."""
    import torch

    w = constants.constant(weight)
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    g = torch.tensor(float(factor), dtype=torch.float64) if number else constants.constant(factor)
    if w is None or g is None:
        raise Refused("constants", text_of(factor if w is not None else weight))
    if not number and g.dtype != w.dtype:
        raise Refused(f"the dtype of {text_of(weight)}", text_of(factor))
    each = [w.shape[0], *[1] * (w.dim() - 2)]
    if g.dim() and (g.dim() < len(each) or [*g.shape] != [1] * (g.dim() - len(each)) + each):
        raise Refused(f"a factor per channel, [{', '.join(map(str, each))}]", text_of(factor))
    exact = w.double() * g.to(w.device, torch.float64).reshape(-1, *[1] * (w.dim() - 1))
    lost = torch.linalg.vector_norm(exact.to(w.dtype) - exact)
    if not lost <= torch.linalg.vector_norm(exact) * torch.finfo(w.dtype).eps / 2:
        short = SHORT_DTYPES[str(w.dtype)]
        raise Refused(f"products that {short} represents", f"{weight.name} times {text_of(factor)}")


@rule_function(tensors=False)
def used_once(_: Constants, x: Any) -> None:
    """The value has one user, so that a weight which is changed for this user is not stored twice."""
    if len(getattr(x, "users", ())) > 1:
        raise Refused(f"{x.name} to have one user", ", ".join(sorted(user.name for user in x.users)))


@rule_function(tensors=False)
def is_written(_: Constants, y: Any, h: Any) -> None:
    """The numbers by which h is multiplied to give y are written in the model: no rule has read them from a weight."""
    while y is not h:
        if FROM_WEIGHT in y.meta:
            raise Refused("a number that the model contains", f"a number from a weight in {text_of(y)}")
        y = h if h in y.args else y.args[0]


@rule_function()
def is_per_channel(_: Constants, weight: Any, x: Any) -> None:
    """The weight has one number per channel of x [N, C, ...]: its shape is [C, 1, ...] or [1, C, 1, ...]."""
    w, shape = fake_of(weight).shape, fake_of(x).shape
    wanted = [1, shape[1], *[1] * (len(shape) - 2)] if len(shape) > 1 else []
    if not len(shape) - 1 <= len(w) <= len(shape) or not same_sizes(w, wanted[len(wanted) - len(w) :]):
        raise Refused(f"a number per channel of {text_of(x)}", text_of(weight))


@rule_function(ends=True)
def row_padding(_: Constants, weight: Any) -> int:
    """The zeros that make each row of a weight a multiple of 16 bytes, as TMA needs: `row_padding(w) > 0`."""
    return _padding(weight, 1)


@rule_function(ends=True)
def column_padding(_: Constants, weight: Any) -> int:
    """The rows of zeros that make each row of the product with a weight a multiple of 16 bytes."""
    return _padding(weight, 0)


def _padding(weight: Any, axis: int) -> int:
    """Returns how many elements a size of a weight [n, k] lacks to a multiple of 16 bytes."""
    w = fake_of(weight)
    if w.dim() != 2 or not isinstance(w.shape[axis], int):
        raise Refused("a weight [n, k]", text_of(weight))
    return int(-(w.shape[axis] * w.element_size()) % 16 // w.element_size())


@rule_function()
def is_large_product(_: Constants, x: Any, weight: Any) -> None:
    """The product of x with a weight takes longer than a copy of x, at the middle of the ranges of dynamic sizes."""
    w = fake_of(weight)
    least = _LARGE.get(SHORT_DTYPES.get(str(w.dtype), ""))
    if least is None or w.dim() != 2 or not all(isinstance(size, int) for size in w.shape):
        raise Refused("a weight [n, k] in f16, bf16 or f32", text_of(weight))
    rows, (n, k) = math.prod(map(typical, fake_of(x).shape[:-1])), w.shape
    if k < 16 or n < 32 or rows * n * k < least:
        expected = f"16 or more columns, 32 or more rows and {least} products of elements"
        raise Refused(expected, f"{rows} rows times {text_of(weight)}")


@rule_function()
def read_as_part(_: Constants, y: Any, *others: str) -> None:
    """Every user reads rows with gaps as fast as dense rows: a view, attention, a cat, a short softmax, an op named."""
    for user in y.users:
        name, length = str(user.target), fake_of(y).shape[-1]
        short = name == "aten.softmax.int" and isinstance(length, int) and length <= 64
        joins = name == "aten.view.default" and not _keeps_rows(fake_of(user).shape, length)
        if joins or not (short or name in _PARTS or name in others):
            ops = ", ".join(["views", "attention", "cat", *others])
            raise Refused(f"{y.name} to be used only by {ops} or a short softmax", f"that {user.name} uses it")


def _keeps_rows(shape: Sequence[Any], length: Any) -> bool:
    """Returns whether the last axes of a shape are those of rows of this length, so that no row joins the next."""
    products = itertools.accumulate(reversed(shape), operator.mul, initial=1)
    return any(same_size(product, length) for product in products)


@rule_function(ends=True)
def mask_padding(_: Constants, k: Any, mask: Any) -> int:
    """The zeros after each row of attention's mask that make rows begin at multiples of 16 bytes, if they do not."""
    m, keys = fake_of(mask), fake_of(k).shape[-2]
    if not isinstance(keys, int) or m.dim() < 2 or not same_sizes(m.shape[-1:], [keys]):
        raise Refused("a mask with a static number of keys", text_of(mask))
    step = 16 // m.element_size()
    strides = [stride for stride, size in zip(m.stride()[:-1], m.shape[:-1], strict=True) if not same_size(size, 1)]
    if any(same_size(stride, 0) for stride in strides):
        raise Refused("a mask that is not expanded, because zeros are added to each row", text_of(mask))
    if m.stride(-1) == 1 and all(same_size(stride % step, 0) for stride in strides):
        raise Refused("rows of a mask that begin anywhere", f"strides {tuple(m.stride())} of {text_of(mask)}")
    return int(-keys % step or step)
