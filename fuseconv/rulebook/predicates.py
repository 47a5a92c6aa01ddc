"""The functions that a rule may call: predicates in `where`, values in `where` and `replace`.

A predicate on symbolic sizes holds only if it is proved for every size in the declared ranges. Evaluating a predicate
never adds a guard. Rules cannot define functions. To add a function, write a decorated function in this file, or in
weight_functions.py, convolution_functions.py or attention_functions.py if it is about the weights of products, about
convolutions or about the kernels of attention.

An operand is the value to which a name is bound in a graph: a node, a Python literal, or a list of these. The functions
import torch themselves, so that rule files can be read without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.graph.proved_sizes import row_major, same_sizes
from fuseconv.rulebook import (  # register functions
    attention_functions,  # noqa: F401
    convolution_functions,  # noqa: F401
    functions,
    weight_functions,  # noqa: F401
)
from fuseconv.rulebook.functions import Constants, Function, rule_function
from fuseconv.rulebook.operands import base_of, fake_of, is_under_autocast
from fuseconv.rulebook.refused import Refused, text_of

FUNCTIONS: Mapping[str, Function] = functions.FUNCTIONS
"""All functions that a rule may call, by name."""

_HIDDEN = -9984
"""A number that hides a score to which it is added. In every dtype, the exp of the sum is 0 compared with the exp of a
visible score, as long as the scores themselves differ by less than nine thousand. Models add -1e4 if the number must
fit in f16; rounded to bf16, it is -9984."""


@rule_function()
def dtype(_: Constants, x: Any) -> str:
    """The short name of a tensor's dtype: `dtype(x) in f16 bf16 f32`."""
    return SHORT_DTYPES.get(str(fake_of(x).dtype), str(fake_of(x).dtype))


@rule_function()
def dtype_of(_: Constants, x: Any) -> Any:
    """The dtype of a tensor, as an argument for an op."""
    return fake_of(x).dtype


@rule_function(ends=True)
def default_eps(_: Constants, x: Any, eps: Any) -> float:
    """The eps of an RMS norm of x that is given None: that of the dtype in which it is computed, f32 for 16 bits."""
    import torch

    if eps is not None:
        raise Refused("an RMS norm without an eps", text_of(eps))
    return torch.finfo(torch.promote_types(fake_of(x).dtype, torch.float32)).eps


@rule_function(shapes=True)
def rank(_: Constants, x: Any) -> int:
    """The number of dims of a tensor."""
    return int(fake_of(x).dim())


@rule_function(shapes=True)
def size(_: Constants, x: Any, axis: int) -> Any:
    """The size of a tensor along an axis. It may be symbolic."""
    fake = fake_of(x)
    if not -fake.dim() <= axis < fake.dim():
        raise Refused(f"an axis {axis}", f"rank {fake.dim()}")
    return fake.shape[axis]


@rule_function(tensors=False)
def gelu_of(_: Constants, approximate: Any) -> str:
    """The activation name of aten.gelu's `approximate`: `gelu` for 'none', `gelu_tanh` for 'tanh'."""
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise Refused("approximate 'none' or 'tanh'", repr(approximate))
    return names[approximate]


@rule_function(tensors=False)
def activation_of(_: Constants, name: str, parameter: float) -> str:
    """The name of an activation with its parameter: `'leaky_relu(0.1)'`."""
    return f"{name}({float(parameter)!r})"


@rule_function()
def number_of(constants: Constants, c: Any) -> bool | int | float:
    """The Python number in a constant tensor of one element."""
    tensor = constants.constant(c)
    if tensor is None or tensor.numel() != 1 or tensor.is_complex():
        raise Refused("a one-element constant", text_of(c))
    number: bool | int | float = tensor.item()
    return number


@rule_function(tensors=False)
def letters_of(_: Constants, equation: Any) -> str:
    """An einsum equation with its letters renamed in order of appearance: `'bij,bjd->bid'` to `'abc,acd->abd'`."""
    if not isinstance(equation, str):
        raise Refused("an equation", text_of(equation))
    letters = dict.fromkeys(letter for letter in equation if letter.isalpha())
    names = {letter: chr(ord("a") + at) for at, letter in enumerate(letters)}
    return "".join(names.get(letter, letter) for letter in equation if letter != " ")


@rule_function(tensors=False)
def einsum_left(_: Constants, equation: Any, a: Any, b: Any) -> list[int]:
    """The permutation of the first operand that turns an einsum into a matrix product: `[..., rows, summed]`."""
    return list(_as_product(equation, a, b).left)


@rule_function(tensors=False)
def einsum_right(_: Constants, equation: Any, a: Any, b: Any) -> list[int]:
    """The permutation of the second operand that turns an einsum into a matrix product: `[..., summed, columns]`."""
    return list(_as_product(equation, a, b).right)


@rule_function(tensors=False)
def einsum_result(_: Constants, equation: Any, a: Any, b: Any) -> list[int]:
    """The permutation that turns the result of the matrix product into the result of the einsum."""
    return list(_as_product(equation, a, b).result)


@rule_function(tensors=False)
def einsum_rows(_: Constants, equation: Any, a: Any, b: Any) -> int:
    """The axes of rows in the matrix product of an einsum: 1, or 2 if the second operand lacks the axis of heads."""
    return int(_as_product(equation, a, b).rows)


def _as_product(equation: Any, a: Any, b: Any) -> Any:
    from fuseconv.graph.einsum import product_of_matrices

    product = product_of_matrices(equation, (fake_of(a).dim(), fake_of(b).dim())) if isinstance(equation, str) else None
    if product is None:
        raise Refused("an einsum that is a single matrix product", text_of(equation))
    return product


@rule_function(tensors=False)
def rows_of(_: Constants, equation: Any) -> str:
    """An einsum equation with `...` for the leading axes of operand and result: `'...a,ba->...b'` is a linear."""
    from fuseconv.graph.einsum import collapsed

    if (found := collapsed(letters_of(_, equation))) is None:
        raise Refused("an einsum equation with two operands", text_of(equation))
    return found


@rule_function(tensors=False)
def composed(_: Constants, first: Any, second: Any) -> list[int]:
    """The permutation that permutes by the first list and then by the second."""
    rank = len(first)
    if len(second) != rank:
        raise Refused(f"a permutation of {rank} axes", text_of(second))
    return [first[axis] % rank for axis in second]


@rule_function(tensors=False)
def ending(_: Constants, shape: Any, last: Any) -> list[Any]:
    """The shape with another last size: `ending(s, 8)` for a view as `s` that has 8 elements per row instead."""
    return [*shape[:-1], last]


@rule_function(tensors=False)
def keeps_order(_: Constants, permutation: Any) -> None:
    """The permutation leaves every axis in place."""
    if [axis % len(permutation) for axis in permutation] != list(range(len(permutation))):
        raise Refused("a permutation that leaves every axis in place", text_of(permutation))


@rule_function(tensors=False)
def product_of(_: Constants, a: Any, b: Any) -> float:
    """The product of two numbers."""
    is_number(_, a, b)
    return float(a * b)


@rule_function(tensors=False)
def sum_of(_: Constants, a: Any, b: Any) -> Any:
    """The sum of two numbers. The sum of two integers is an integer."""
    is_number(_, a, b)
    return a + b


@rule_function(tensors=False)
def share_of(_: Constants, x: Any, axes: Any) -> float:
    """The factor that turns a sum along axes into a mean: 1 / the number of elements along them."""
    count: Any = math.prod(size(_, x, axis) for axis in axes) if isinstance(axes, list | tuple) and axes else 0
    if not isinstance(count, int) or count == 0:
        raise Refused("axes with static sizes", text_of(x))
    return 1 / count


@rule_function(tensors=False)
def score_scale(_: Constants, q: Any, scale: Any) -> float:
    """The factor by which attention multiplies its scores: `scale`, or 1 / sqrt(the width of q) for None."""
    if scale is not None:
        is_number(_, scale)
        return float(scale)
    width = size(_, q, -1)
    if not isinstance(width, int) or width == 0:
        raise Refused("queries of a static width", text_of(q))
    return 1 / math.sqrt(width)


@rule_function(follows=True)
def hides_nothing(constants: Constants, mask: Any) -> None:
    """The attention mask hides nothing, for every size: a bool mask is all true, an additive mask is all zero."""
    import sympy

    formula = constants.formula(mask)
    if formula is not True and not (fake_of(mask).is_floating_point() and formula == sympy.Integer(0)):
        raise Refused("a mask that hides nothing", f"{text_of(mask)} with elements {formula}")


@rule_function(follows=True)
def is_never_true(constants: Constants, mask: Any) -> None:
    """No element of the bool tensor is true, for every size."""
    formula = constants.formula(mask)
    if formula is not False:
        raise Refused("a mask that is never true", f"{text_of(mask)} with elements {formula}")


@rule_function(follows=True)
def hides_no_row(constants: Constants, mask: Any) -> None:
    """No row of the bool tensor, which is true where attention is hidden, is all true: every query sees a key."""
    if not constants.leaves_some(mask):
        raise Refused("a mask that leaves every query at least one key", text_of(mask))


@rule_function(follows=True)
def hides_the_future(constants: Constants, mask: Any) -> None:
    """The attention mask hides from each query exactly the keys after it, for every size."""
    from fuseconv.graph.formula import (
        AtLeastZero,
        Choice,
        axis,
        negated,
    )

    formula = constants.formula(mask)
    condition = formula
    if isinstance(formula, Choice):
        yes = formula.yes == 0 and formula.no <= _HIDDEN
        no = formula.no == 0 and formula.yes <= _HIDDEN
        condition = formula.condition if yes else negated(formula.condition) if no else None
    if condition != AtLeastZero(axis(2) - axis(1)):
        raise Refused("a mask that hides the future", f"{text_of(mask)} with elements {formula}")


@rule_function(tensors=False)
def read_only_by(_: Constants, x: Any, *operands: Any) -> None:
    """Every user of the value calls one of these ops: `read_only_by(w, 'aten.linear.default')`."""
    for user in getattr(x, "users", ()):
        if str(user.target) not in operands:
            raise Refused(f"{x.name} to be used only by {' or '.join(operands)}", f"that {user.name} uses it")


@rule_function()
def is_tensor(_: Constants, *operands: Any) -> None:
    """Each operand is a tensor, not a number, a list or None."""
    for operand in operands:
        fake_of(operand)


@rule_function(tensors=False)
def is_number(_: Constants, *operands: Any) -> None:
    """Each operand is a Python number that is a literal in the graph."""
    for operand in operands:
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            raise Refused("a number", text_of(operand))


@rule_function()
def is_floating(_: Constants, *operands: Any) -> None:
    """Each operand is a tensor of a real floating dtype."""
    for operand in operands:
        if not fake_of(operand).dtype.is_floating_point:
            raise Refused("a floating dtype", text_of(operand))


@rule_function(tensors=False)
def same_kind(_: Constants, *operands: Any) -> None:
    """All tensors have the same device and, unless autocast casts them, the same dtype. None is ignored."""
    present = [operand for operand in operands if operand is not None]
    for operand in present[1:]:
        if fake_of(operand).device != fake_of(present[0]).device:
            raise Refused(f"the device {fake_of(present[0]).device}", f"{operand.name} on {fake_of(operand).device}")
        if fake_of(operand).dtype != fake_of(present[0]).dtype and not is_under_autocast(operand):
            raise Refused(f"the dtype of {text_of(present[0])}", text_of(operand))


@rule_function(shapes=True)
def same_shape(_: Constants, *operands: Any) -> None:
    """All tensors provably have the same shape."""
    first = fake_of(operands[0])
    for operand in operands[1:]:
        if not same_sizes(first.shape, fake_of(operand).shape):
            raise Refused(f"the shape of {text_of(operands[0])}", text_of(operand))


@rule_function(tensors=False, shapes=True)
def has_sizes(_: Constants, x: Any, *operands: Any) -> None:
    """The tensor has exactly these sizes. The condition also holds for None: `has_sizes(b, size(w, 0))`."""
    if x is not None and not same_sizes(fake_of(x).shape, operands):
        raise Refused(f"the sizes [{', '.join(map(str, operands))}]", text_of(x))


@rule_function()
def is_parameter(constants: Constants, *operands: Any) -> None:
    """Each operand is a parameter, buffer or constant of the model, not a computed value."""
    for operand in operands:
        if not constants.is_state(operand):
            raise Refused("a parameter of the model", text_of(operand))


@rule_function()
def is_vector(_: Constants, *operands: Any) -> None:
    """Each operand is a tensor with at most one axis longer than 1."""
    for operand in operands:
        if sum(not isinstance(length, int) or length != 1 for length in fake_of(operand).shape) > 1:
            raise Refused("a tensor with at most one axis longer than 1", text_of(operand))


@rule_function()
def is_scalar(constants: Constants, c: Any) -> None:
    """The operand is a constant tensor of rank 0, equivalent to a Python number."""
    tensor = constants.constant(c)
    if tensor is None or tensor.dim() != 0:
        raise Refused("a 0-dim constant", text_of(c))


@rule_function(tensors=False)
def divides(_: Constants, a: Any, b: Any) -> None:
    """The first number divides the second, for every size: `divides(size(k, 1), size(q, 1))` for grouped heads."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if a == 0 or not statically_known_true(b % a == 0):
        raise Refused(f"a number that divides {b}", str(a))


@rule_function()
def is_contiguous(_: Constants, *operands: Any) -> None:
    """Each tensor is provably contiguous, whichever kernel computes it."""
    for operand in operands:
        source = base_of(operand)
        if "scaled_dot_product_attention" in str(getattr(source, "target", "")):
            raise Refused("a layout that does not depend on the kernel", f"a view of {source.name}")
        if not row_major(fake_of(operand)):
            raise Refused("a contiguous tensor", text_of(operand))


@rule_function(tensors=False, shapes=True)
def covers(constants: Constants, window: Any, x: Any, axes: Any) -> None:
    """The pooling window is at least as long as the tensor along each of these axes, for every size."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    lengths = list(window) * (len(axes) if len(window) == 1 else 1)
    for length, axis in zip(lengths, axes, strict=True):
        if not statically_known_true(length >= size(constants, x, axis)):
            raise Refused(f"a window over all positions of {text_of(x)}", str(lengths))


@rule_function(shapes=True)
def same_value(constants: Constants, x: Any, y: Any) -> None:
    """The two tensors agree in dtype, device and shape, so that converting one to the other changes nothing."""
    same_kind(constants, x, y)
    same_shape(constants, x, y)
