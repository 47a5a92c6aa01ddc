"""Replacements in plain PyTorch for elementwise ops whose ONNX translation is wrong, imprecise or missing.

Each function has the signature of the op and computes it with ops that the exporter translates correctly. If the
function returns NotImplemented, the op is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def log_sigmoid(x: Tensor) -> Tensor:
    """Computes min(x, 0) - log1p(exp(-|x|)), because log(sigmoid(x)) is -inf where the sigmoid underflows."""
    return torch.minimum(x, torch.zeros_like(x)) - torch.log1p(torch.exp(-x.abs()))


def sigmoid(x: Tensor) -> Tensor:
    """Computes 1 / (1 + exp(-x)): ONNX Runtime's f32 CPU kernel has an error of 1e-7, as large as the result at -16."""
    return torch.reciprocal(1 + torch.exp(-x)) if _is_f32(x) else NotImplemented


def silu(x: Tensor) -> Tensor:
    """Computes x / (1 + exp(-x)), for the same reason as sigmoid."""
    return x / (1 + torch.exp(-x)) if _is_f32(x) else NotImplemented


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Computes first half / (1 + exp(-second half)) along `dim`, for the same reason as sigmoid."""
    left, right = x.chunk(2, dim)
    return left / (1 + torch.exp(-right)) if _is_f32(x) else NotImplemented


def _is_f32(x: Tensor) -> bool:
    return x.dtype == torch.float32


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """Computes log(exp(a) + exp(b)) as max + log1p(exp(-|a - b|)), which does not overflow."""
    return _log_add(a, b, torch.exp, 1.0)


def logaddexp2(a: Tensor, b: Tensor) -> Tensor:
    """Computes log2(2**a + 2**b) as max + log2(1 + 2**-|a - b|), which does not overflow."""
    return _log_add(a, b, torch.exp2, 1 / math.log(2))


def _log_add(a: Tensor, b: Tensor, power: Callable[[Tensor], Tensor], scale: float) -> Tensor:
    larger = torch.maximum(a, b)
    rest = torch.where(a == b, torch.zeros_like(larger), -(a - b).abs())  # inf - inf is NaN
    added = larger + torch.log1p(power(rest)) * scale
    return torch.where(torch.isinf(larger), larger, added)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Computes the angle of (x, y) in all quadrants, including signed zeros and infinities."""
    shape = (y + x).shape
    y, x = y.expand(shape), x.expand(shape)
    both = torch.isinf(y) & torch.isinf(x)
    ratio = torch.where(both, torch.sign(y) * torch.sign(x), y / x)
    half_turn = torch.where(_is_negative(y), torch.full_like(y, -math.pi), torch.full_like(y, math.pi))
    left = _is_negative(x)
    on_axis = torch.where(left, half_turn, torch.where(y == 0, y, half_turn / 2))
    angle = torch.where(x == 0, torch.where(y == 0, on_axis, half_turn / 2), torch.atan(ratio))
    return torch.where((x != 0) & left, angle + half_turn, angle)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """Computes sqrt(a**2 + b**2) as max * sqrt(1 + (min / max)**2), which does not overflow in the squares."""
    a, b = a.abs(), b.abs()
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where((larger == 0) | torch.isinf(larger), torch.zeros_like(larger), smaller / larger)
    return larger * torch.sqrt(1 + ratio * ratio)


def _is_negative(x: Tensor) -> Tensor:
    """Returns elementwise whether a number is negative or -0.0; False for NaN."""
    return torch.where(x == 0, torch.reciprocal(x) < 0, x < 0)


def signbit(x: Tensor) -> Tensor:
    """Returns elementwise whether the sign bit is set; False for every NaN, whatever its sign bit."""
    return _is_negative(x) if x.dtype.is_floating_point else x < 0


def copysign(a: Tensor, b: Any) -> Tensor:
    """Returns the magnitude of the first operand with the sign of the second."""
    b = b if isinstance(b, Tensor) else torch.full((), b, dtype=a.dtype)
    return torch.where(signbit(b), -a.abs(), a.abs())


def fmax(a: Tensor, b: Tensor) -> Tensor:
    """Returns the larger operand; if one operand is NaN, the other operand."""
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.maximum(a, b)))


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """Returns the smaller operand; if one operand is NaN, the other operand."""
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.minimum(a, b)))


def remainder(a: Any, b: Any) -> Any:
    """Returns the exact remainder of floats, with the sign of the divisor.

    The formula a - b * floor(a / b) would round three times.
    """
    if not _is_floating(a, b):
        return NotImplemented
    a, b = _tensors(a, b)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def floor_divide(a: Any, b: Any) -> Any:
    """Computes the floored quotient of floats from the exact remainder.

    floor(a / b) is too large by one if a / b is rounded up to an integer.
    """
    if not _is_floating(a, b):
        return NotImplemented if isinstance(b, Tensor) else aten.floor_divide.default(*_tensors(a, b))
    a, b = _tensors(a, b)
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    return torch.where(b == 0, a / b, torch.where(quotient == 0, torch.zeros_like(floor), floor))


def div_mode(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """Divides with a rounding mode: `floor` or `trunc` for integers, `floor` for floats.

    For `trunc`, adds one to the floored quotient of integers if the quotient is negative and not exact.
    """
    if _is_floating(a, b):
        return floor_divide(a, b) if rounding_mode == "floor" else NotImplemented
    if rounding_mode is None:
        return NotImplemented
    a, b = _tensors(a, b)
    quotient = aten.floor_divide.default(a, b)
    if rounding_mode == "floor":
        return quotient
    return torch.where((quotient < 0) & (quotient * b != a), quotient + 1, quotient)


def shift_left(a: Tensor, b: Any) -> Any:
    """Multiplies by a power of two, because ONNX can shift only unsigned integers."""
    return a * _power_of_two(a, b)


def shift_right(a: Tensor, b: Any) -> Any:
    """Divides by a power of two and rounds down, because ONNX can shift only unsigned integers."""
    return torch.div(a, _power_of_two(a, b), rounding_mode="floor")


def _power_of_two(a: Tensor, b: Any) -> Any:
    if isinstance(b, Tensor):
        return torch.pow(torch.full_like(b, 2), b)
    return torch.full((), 2 ** int(b), dtype=a.dtype)


def relu(x: Tensor) -> Any:
    """Computes relu of 64-bit integers, which ONNX Runtime does not support."""
    return NotImplemented if x.dtype.is_floating_point else x.clamp(min=0)


def log10(x: Tensor) -> Any:
    """Computes log10 of float64 as log(x) / log(10), because the exporter's constant for log(10) is float32."""
    return NotImplemented if x.dtype != torch.float64 else torch.log(x) / math.log(10)


def log2(x: Tensor) -> Any:
    """Computes log2 of float64 with a float64 constant, because the exporter's constant is float32."""
    return NotImplemented if x.dtype != torch.float64 else torch.log(x) / math.log(2)


def sinc(x: Tensor) -> Any:
    """Computes sinc of float64 with pi in float64, because the exporter's pi is float32."""
    if x.dtype != torch.float64:
        return NotImplemented
    angle = x * math.pi
    return torch.where(x == 0, torch.ones_like(x), torch.sin(angle) / angle)


def rad2deg(x: Tensor) -> Any:
    """Converts float64 radians with a float64 factor, because the exporter's factor is float32."""
    return NotImplemented if x.dtype != torch.float64 else x * (180 / math.pi)


def deg2rad(x: Tensor) -> Any:
    """Converts float64 degrees with a float64 factor, because the exporter's factor is float32."""
    return NotImplemented if x.dtype != torch.float64 else x * (math.pi / 180)


def gelu(x: Tensor, *, approximate: str = "none") -> Any:
    """Computes the tanh approximation for float64 with float64 constants, because the exporter's are float32."""
    if x.dtype != torch.float64 or approximate != "tanh":
        return NotImplemented
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Computes beta * x + alpha * (a @ b) for float64 without Gemm, whose alpha and beta are float32."""
    return NotImplemented if x.dtype != torch.float64 or (beta, alpha) == (1, 1) else beta * x + alpha * (a @ b)


def celu(x: Tensor, alpha: Any = 1.0) -> Any:
    """Computes celu of float64 in float64, because the exporter computes it in float32."""
    return NotImplemented if x.dtype != torch.float64 else torch.where(x > 0, x, alpha * torch.expm1(x / alpha))


def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Computes a float64 range in float64, because the exporter computes in float32 if the step is a float."""
    numbers = (start, end, step)
    if dtype != torch.float64 or not all(isinstance(one, int | float) for one in numbers):
        return NotImplemented
    count = max(math.ceil((end - start) / step), 0)
    return torch.arange(count).to(dtype) * step + start


def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    """Adds booleans with logical ops, because ONNX's Add does not accept bool."""
    if torch.result_type(a, b) != torch.bool:
        return NotImplemented
    a, b = _tensors(a, b)
    return a | b if alpha else a & (b | ~b)


def rsub(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    """Computes other - alpha * x in the promoted dtype, because the exporter does not promote dtypes."""
    if torch.result_type(x, other) == x.dtype:
        return NotImplemented
    first, second = _tensors(other, x)
    return first - second * alpha


def where(condition: Tensor, a: Any, b: Any) -> Any:
    """Selects between booleans with logical ops, because ONNX Runtime's Where does not support bool."""
    if torch.result_type(a, b) != torch.bool:
        return NotImplemented
    a, b = _tensors(a, b)
    return (condition & a) | (~condition & b)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    """Fills booleans with logical ops, because ONNX Runtime's Where does not support bool."""
    return NotImplemented if x.dtype != torch.bool else (mask & bool(value)) | (~mask & x)


def _is_floating(*operands: Any) -> bool:
    return any(one.dtype.is_floating_point if isinstance(one, Tensor) else isinstance(one, float) for one in operands)


def _tensors(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Returns both operands as tensors in their promoted dtype."""
    dtype = torch.result_type(a, b)
    a, b = (one.to(dtype) if isinstance(one, Tensor) else torch.full((), one, dtype=dtype) for one in (a, b))
    return a, b


SPELLINGS: Mapping[Any, Callable[..., Any]] = {
    aten.deg2rad.default: deg2rad,
    aten.log10.default: log10,
    aten.log2.default: log2,
    aten.sinc.default: sinc,
    aten.log_sigmoid.default: log_sigmoid,
    aten.logaddexp.default: logaddexp,
    aten.logaddexp2.default: logaddexp2,
    aten.atan2.default: atan2,
    aten.hypot.default: hypot,
    aten.signbit.default: signbit,
    aten.copysign.Tensor: copysign,
    aten.copysign.Scalar: copysign,
    aten.fmax.default: fmax,
    aten.fmin.default: fmin,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.remainder.Scalar_Tensor: remainder,
    aten.floor_divide.default: floor_divide,
    aten.floor_divide.Scalar: floor_divide,
    aten.div.Tensor_mode: div_mode,
    aten.div.Scalar_mode: div_mode,
    aten.__lshift__.Scalar: shift_left,
    aten.__lshift__.Tensor: shift_left,
    aten.bitwise_left_shift.Tensor: shift_left,
    aten.bitwise_left_shift.Tensor_Scalar: shift_left,
    aten.__rshift__.Scalar: shift_right,
    aten.__rshift__.Tensor: shift_right,
    aten.bitwise_right_shift.Tensor: shift_right,
    aten.bitwise_right_shift.Tensor_Scalar: shift_right,
    aten.addmm.default: addmm,
    aten.arange.start_step: arange,
    aten.celu.default: celu,
    aten.gelu.default: gelu,
    aten.rad2deg.default: rad2deg,
    aten.relu.default: relu,
    aten.add.Tensor: add,
    aten.rsub.Scalar: rsub,
    aten.where.self: where,
    aten.masked_fill.Scalar: masked_fill,
}

ON_CPU: Mapping[Any, Callable[..., Any]] = {
    aten.sigmoid.default: sigmoid,
    aten.silu.default: silu,
    aten.glu.default: glu,
}
"""Replacements for ops that ONNX Runtime computes imprecisely on a CPU, but exactly and in fewer passes on a GPU."""
