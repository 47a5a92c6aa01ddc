"""Tensors of residues: integers modulo a prime. To PyTorch they appear as float64 tensors, so that ops accept them.

Ops that only move elements move the residues. Sums and products are exact in the field. Other functions are modeled as
random polynomials; see field.py. Some are computed from another function instead: gelu from erf; sigmoid, silu and
softmax from exp; hardswish from clamp. Ops that PyTorch can decompose are decomposed. Any other op raises
`NotApplicableError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._pytree import tree_map_only

from fuseconv.graph.aten import facts
from fuseconv.proof.field import PRIME, Field, NotApplicableError, inverse, matmul, power


class Residues(torch.Tensor):
    """A tensor of integers modulo PRIME.

    Attributes:
        residues: the integers as an int64 tensor, from 0 to PRIME - 1.
        field: the finite field of the integers, with its random functions.
    """

    residues: torch.Tensor
    field: Field

    @staticmethod
    def __new__(cls: type[Self], residues: torch.Tensor, field: Field) -> Self:
        """Wraps an int64 tensor of residues in a tensor whose dtype appears as float64."""
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Self = make(cls, residues.shape, strides=residues.stride(), dtype=torch.float64)
        made.residues, made.field = residues, field
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # untyped there
        del tensor_contents
        return f"Residues({self.residues})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # tuples and dicts of anything
        """Computes an op on residues.

        Raises:
            NotApplicableError: this module has no rule for the op, and PyTorch cannot decompose the op.
        """
        del types
        name = func._schema.name.removeprefix("aten::")
        given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | (kwargs or {})
        given = {("x" if key in ("self", "input") else key): value for key, value in given.items()}
        field = _field((args, kwargs))
        if moves_elements(func):
            moved = func(*tree_map_only(torch.Tensor, lambda one: _moved(one, field), args), **(kwargs or {}))
            return tree_map_only(torch.Tensor, lambda one: Residues(one, field), moved)
        if name in _OPS:
            return _OPS[name](field, **given)
        if name.removesuffix("_") in _OPS:
            given["x"].residues.copy_(_OPS[name.removesuffix("_")](field, **given).residues)
            return given["x"]
        found = func.decompose(*args, **(kwargs or {})) if func._can_decompose() else NotImplemented
        if found is NotImplemented:
            raise NotApplicableError(f"aten.{name}")
        return found


def _field(arguments: Any) -> Field:
    return next(one.field for one in torch.utils._pytree.tree_leaves(arguments) if isinstance(one, Residues))


def _moved(tensor: torch.Tensor, field: Field) -> torch.Tensor:
    return of(tensor, field) if isinstance(tensor, Residues) or tensor.is_floating_point() else tensor


def of(value: Any, field: Field) -> torch.Tensor:
    """Returns the residues of a tensor or a number as an int64 tensor of the same shape."""
    if isinstance(value, Residues):
        return value.residues
    if not isinstance(value, torch.Tensor):
        return torch.tensor(field.number(value))
    numbers = [field.number(number) for number in value.reshape(-1).tolist()]
    return torch.tensor(numbers, dtype=torch.int64).reshape(value.shape)


def _of_all(run: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Wraps `run` in a function that first converts its operands, but not options such as `dim`, to residues."""

    def op(field: Field, **given: Any) -> Residues:
        kept = {"dim", "dims", "keepdim", "dtype", "rounding_mode", "half_to_float"}
        values = {name: value if name in kept or value is None else of(value, field) for name, value in given.items()}
        return Residues(run(field, **values), field)

    return op


def _sum(field: Field, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    del field, dtype
    return x.sum(list(range(x.dim())) if dim is None else dim, keepdim) % PRIME


def _count(x: torch.Tensor, dim: Any) -> int:
    axes = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def _mean(field: Field, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    return _sum(field, x, dim, keepdim, dtype) * pow(_count(x, dim), -1, PRIME) % PRIME


def _variance(field: Field, x: torch.Tensor, dim: Any, correction: Any, keepdim: bool) -> torch.Tensor:
    centred = (x - _mean(field, x, dim, True)) % PRIME
    count = _count(x, dim) - int(1 if correction is None else correction)
    return _sum(field, centred * centred % PRIME, dim, keepdim) * pow(count, -1, PRIME) % PRIME


def _var(field: Field, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Residues:
    return Residues(_variance(field, of(x, field), dim, correction, keepdim), field)


def _var_mean(field: Field, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return _var(field, x, dim, correction, keepdim), Residues(_mean(field, of(x, field), dim, keepdim), field)


def _layer_norm(field: Field, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    value, dims = of(x, field), list(range(-len(normalized_shape), 0))
    mean, deviation = _mean(field, value, dims, True), _variance(field, value, dims, 0, True)
    scale = inverse(field.root((deviation + field.number(eps)) % PRIME))
    return (
        _affine(field, (value - mean) % PRIME * scale % PRIME, weight, bias),
        Residues(mean, field),
        Residues(scale, field),
    )


def _group_norm(field: Field, x: Any, weight: Any, bias: Any, group: int, eps: float, **sizes: int) -> Any:
    value = of(x, field)
    rows = Residues(value.reshape(sizes["N"], group, value.numel() // (sizes["N"] * group)), field)
    normalised, mean, scale = _layer_norm(field, rows, rows.shape[-1:], None, None, eps)
    by_channel = normalised.residues.reshape(sizes["N"], sizes["C"], sizes["HxW"])
    factors = (None if one is None else Residues(of(one, field).reshape(-1, 1), field) for one in (weight, bias))
    return Residues(_affine(field, by_channel, *factors).residues.reshape(value.shape), field), mean, scale


def _rms_norm(field: Field, x: Any, normalized_shape: Any, weight: Any, eps: float | None) -> Any:
    value, dims = of(x, field), list(range(-len(normalized_shape), 0))
    mean = _mean(field, value * value % PRIME, dims, True)
    least = torch.finfo(torch.float64).eps if eps is None else eps
    scale = inverse(field.root((mean + field.number(least)) % PRIME))
    return _affine(field, value * scale % PRIME, weight, None), Residues(scale, field)


def _affine(field: Field, value: torch.Tensor, weight: Any, bias: Any) -> Residues:
    if weight is not None:
        value = value * of(weight, field) % PRIME
    if bias is not None:
        value = (value + of(bias, field)) % PRIME
    return Residues(value, field)


def _addmm(field: Field, x: Any, beta: Any = 1, alpha: Any = 1, **factors: Any) -> Residues:
    a, b = (of(factor, field) for factor in factors.values())
    scaled = matmul(a, b) * field.number(alpha) % PRIME
    return Residues((of(x, field) * field.number(beta) + scaled) % PRIME, field)


def _pow(field: Field, x: Any, exponent: Any) -> Residues:
    value = of(x, field)
    if exponent in (0.5, -0.5):
        value, exponent = field.root(value), int(2 * exponent)
    if not isinstance(exponent, int | float) or exponent != int(exponent) or abs(exponent) > 8:
        raise NotApplicableError(f"aten.pow by {exponent!r}")
    result = power(value, abs(int(exponent)))
    return Residues(inverse(result) if exponent < 0 else result, field)


def _sigmoid(field: Field, x: torch.Tensor) -> torch.Tensor:
    return inverse((1 + field.function("exp", -x % PRIME)) % PRIME)


def _mish(field: Field, x: torch.Tensor) -> torch.Tensor:
    return x * field.function("tanh", field.function("softplus", x), 1) % PRIME


def _hardsigmoid(field: Field, x: torch.Tensor) -> torch.Tensor:
    return field.function("clamp low=0 high=6", (x + 3) % PRIME) * pow(6, -1, PRIME) % PRIME


def _gelu(field: Field, x: Any, approximate: str = "none") -> Residues:
    value, half = of(x, field), pow(2, -1, PRIME)
    if approximate == "tanh":
        cube = power(value, 3) * field.number(0.044715) % PRIME
        gate = field.function("tanh", (value + cube) % PRIME * field.number((2 / torch.pi) ** 0.5) % PRIME, 1)
    else:
        gate = field.function("erf", value * field.number(0.5**0.5) % PRIME, 1)
    return Residues(value * (1 + gate) % PRIME * half % PRIME, field)


def _softmax(field: Field, x: torch.Tensor, dim: int, half_to_float: bool = False, dtype: Any = None) -> torch.Tensor:
    del half_to_float, dtype
    raised = field.function("exp", x)
    return raised * inverse(raised.sum(dim, True) % PRIME) % PRIME


def _masked_fill(field: Field, x: Any, mask: torch.Tensor, value: Any) -> Residues:
    return Residues(torch.where(mask, of(value, field), of(x, field)), field)


def _glu(field: Field, x: Any, dim: int = -1) -> Residues:
    value, gate = of(x, field).chunk(2, dim)
    return Residues(value * _sigmoid(field, gate) % PRIME, field)


def _batch_norm(
    field: Field, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    del momentum
    shape = [1, -1, *[1] * (x.dim() - 2)]
    value, mean, variance = of(x, field), of(running_mean, field).reshape(shape), of(running_var, field).reshape(shape)
    scale = inverse(field.root((variance + field.number(eps)) % PRIME))
    weight, bias = (None if one is None else one.reshape(shape) for one in (weight, bias))
    result = _affine(field, (value - mean) % PRIME * scale % PRIME, weight, bias)
    return result, Residues(mean.new_zeros(0), field), Residues(mean.new_zeros(0), field)


def _empty(field: Field, x: Any, size: Any, **_: Any) -> Residues:
    return Residues(of(x, field).new_zeros(size), field)


def _where(field: Field, condition: torch.Tensor, x: Any, other: Any) -> Residues:
    return Residues(torch.where(condition, of(x, field), of(other, field)), field)


def _same(field: Field, x: Any, dtype: torch.dtype | None = None, **_: Any) -> Residues:
    if dtype is not None and not dtype.is_floating_point:
        raise NotApplicableError(f"a conversion to {dtype}")
    return Residues(of(x, field), field)


def _unknown(name: str, parity: int | None = None) -> Callable[..., Residues]:
    """Returns a function that applies a random polynomial to each element of a tensor.

    Calls with equal non-tensor arguments use the same polynomial. A second tensor raises `NotApplicableError`.
    """

    def op(field: Field, x: Any, **others: Any) -> Residues:
        if any(isinstance(value, torch.Tensor) for value in others.values()):
            raise NotApplicableError(f"aten.{name} of several tensors")
        told = [f"{key}={value!r}" for key, value in others.items() if value is not None]
        return Residues(field.function(" ".join([name, *told]), of(x, field), parity), field)

    return op


def _clamp(field: Field, x: Any, **bounds: Any) -> Residues:
    low, high = (next((bounds[name] for name in names if name in bounds), None) for names in _BOUNDS)
    return _unknown("relu")(field, x) if low == 0 and high is None else _unknown("clamp")(field, x, low=low, high=high)


_BOUNDS = (("min", "min_val"), ("max", "max_val"))


def _names(text: str) -> Sequence[str]:
    return text.split()


_MOVES = frozenset({"as_strided", "index_copy", "new_zeros", "tril", "triu", "zeros_like"})
"""Further ops that compute no new values. Besides moving elements, they produce zeros, take elements from several
operands, or read memory beyond the operand."""

_ONE = torch.tensor(1)

_OPS: Mapping[str, Callable[..., Any]] = {
    "add": _of_all(lambda _, x, other, alpha=_ONE: (x + other * alpha) % PRIME),
    "sub": _of_all(lambda _, x, other, alpha=_ONE: (x - other * alpha % PRIME) % PRIME),
    "rsub": _of_all(lambda _, x, other, alpha=_ONE: (other - x * alpha % PRIME) % PRIME),
    "mul": _of_all(lambda _, x, other: x * other % PRIME),
    "div": _of_all(lambda _, x, other: x * inverse(other) % PRIME),
    "neg": _of_all(lambda _, x: -x % PRIME),
    "reciprocal": _of_all(lambda _, x: inverse(x)),
    "square": _of_all(lambda _, x: x * x % PRIME),
    "sqrt": _of_all(lambda f, x: f.root(x)),
    "rsqrt": _of_all(lambda f, x: inverse(f.root(x))),
    "addcmul": _of_all(lambda _, x, tensor1, tensor2, value=_ONE: (x + tensor1 * tensor2 % PRIME * value) % PRIME),
    "lerp": _of_all(lambda _, x, end, weight: (x + (end - x) % PRIME * weight) % PRIME),
    "mm": lambda field, x, mat2: Residues(matmul(of(x, field), of(mat2, field)), field),
    "bmm": lambda field, x, mat2: Residues(matmul(of(x, field), of(mat2, field)), field),
    "mv": lambda field, x, vec: Residues(matmul(of(x, field), of(vec, field)), field),
    "dot": lambda field, x, tensor: Residues(matmul(of(x, field), of(tensor, field)), field),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "sum": _of_all(_sum),
    "mean": _of_all(_mean),
    "var": _var,
    "var_mean": _var_mean,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "pow": _pow,
    "sigmoid": _of_all(_sigmoid),
    "silu": _of_all(lambda f, x: x * _sigmoid(f, x) % PRIME),
    "gelu": _gelu,
    "glu": _glu,
    "mish": _of_all(_mish),
    "hardsigmoid": _of_all(_hardsigmoid),
    "hardswish": _of_all(lambda f, x: x * _hardsigmoid(f, x) % PRIME),
    "new_empty": _empty,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": _of_all(_softmax),
    "masked_fill": _masked_fill,
    "where": _where,
    "_to_copy": _same,
    "to": _same,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), _clamp),
    **{name: _unknown(name, 1) for name in _names("tanh erf sin tan sinh asin atan asinh atanh")},
    **{name: _unknown(name, 0) for name in _names("abs cos cosh")},
    **{
        name: _unknown(name)
        for name in _names("exp expm1 log log1p log2 relu leaky_relu elu softplus log_sigmoid_forward acos")
    },
}


def moves_elements(op: Any) -> bool:
    """Returns whether an op only moves, copies or drops elements, and computes no new values."""
    known = facts(op)
    return (bool(known.moved) and not known.converts) or op._schema.name.removeprefix("aten::") in _MOVES
