"""Properties of ops that do not depend on the arguments of a call: mutation, aliasing, randomness, data movement.

The properties come from the schemas and tags of the ops. Tables in this module add the properties that schemas and tags
omit. nodes.py determines properties that depend on the arguments: for example, a dropout with probability 0 is not
random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import torch
from torch._ops import OpOverload

Order: TypeAlias = Literal["same", "row-major", "other"]
"""The positions at which a data-movement op places the elements of its operand. "same": at the same positions, except
for broadcasting. "row-major": in a different shape, but in the same row-major order. "other": in any other order."""


@dataclass(frozen=True)
class Facts:
    """Properties of an op that do not depend on the arguments of a call.

    Attributes:
        draws: whether the op may generate random numbers. `nodes.draws` decides whether a particular call does.
        writes: the names of the arguments that the op mutates according to its schema.
        statistics: the name of the boolean argument that, if true, makes the op mutate `running_mean` and
            `running_var`, which its schema does not declare. Empty for all other ops.
        shares: the names of the arguments with which a result may share memory. The schema of a composite op may omit
            some of these arguments; see `aliases.viewed`.
        functional: the functional variant of an in-place op. None for other ops, or if no such variant exists.
        commutative: whether the first two operands may be swapped. If the op has an argument `alpha`, the operands may
            be swapped only if `alpha` is 1.
        elementwise: whether each element of the result depends only on the operands' elements at the same position.
        moved: the name of the argument whose elements a data-movement op copies or views. Each element of the result
            is an element of this argument, except for a dtype conversion. Empty for ops that compute new values.
        order: the order in which the result contains the elements of `moved`.
        converts: whether the op may convert floating-point values to integers.
        positions: the names of the tensor arguments whose integers are indices or counts.
        metadata_only: whether the op uses only the shape, strides, dtype and device of a tensor.
    """

    draws: bool
    writes: tuple[str, ...]
    statistics: str
    shares: tuple[str, ...]
    functional: OpOverload | None
    commutative: bool
    elementwise: bool
    moved: str
    order: Order
    converts: bool
    positions: tuple[str, ...]
    metadata_only: bool


_SAME = "_to_copy alias clone contiguous detach detach_ expand expand_as lift_fresh to type_as"
_ROW_MAJOR = "_reshape_alias _unsafe_view flatten reshape reshape_as squeeze unflatten unsqueeze view view_as"
_OTHER = (
    "cat chunk diagonal flip gather index index_select narrow permute repeat repeat_interleave roll select slice split "
    "split_with_sizes stack t transpose unbind unfold unsafe_chunk unsafe_split unsafe_split_with_sizes"
)
_ORDERS: dict[str, Order] = {
    **dict.fromkeys(_SAME.split(), "same"),
    **dict.fromkeys(_ROW_MAJOR.split(), "row-major"),
    **dict.fromkeys(_OTHER.split(), "other"),
}
"""Maps each data-movement op to its order. Applies to the ops' copying variants, such as `view_copy`, too."""

_NO_MOVES = frozenset({"aten.repeat_interleave.Tensor", "aten.view.dtype", "aten.view_copy.dtype"})
"""Overloads that are not data movement, although other overloads of the same op are. The first overload returns
indices. The other two reinterpret the bits of the elements as another dtype."""

_ELEMENTWISE = frozenset({"hardswish"})
"""Elementwise ops that lack PyTorch's `pointwise` tag and are not data movement."""

_COMMUTATIVE = frozenset(
    {
        *("aten.add.Tensor", "aten.add_.Tensor", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor"),
        *("aten.logical_and.default", "aten.logical_or.default", "aten.maximum.default", "aten.minimum.default"),
        *("aten.mul.Tensor", "fuseconv.add_relu.default"),
    }
)

_UNSAFE = frozenset({"_unsafe_view", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"})
"""Ops that return views, although their schemas declare no views."""

_CONVERTS = frozenset({"_to_copy", "copy_", "prims::convert_element_type", "to", "type_as"})

_METADATA_ONLY = frozenset(
    {
        *("_assert_tensor_metadata", "empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros"),
        *("ones_like", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride", "zero", "zeros_like"),
    }
)

_POSITIONS = frozenset({"index", "indices", "repeats"})
"""The names that PyTorch gives to arguments whose elements are indices or counts."""

_STATISTICS = {
    **dict.fromkeys(
        ("_batch_norm_impl_index", "batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm"),
        "training",
    ),
    "instance_norm": "use_input_stats",
}
"""Maps each norm to its boolean argument that, if true, makes it update the running statistics from its input."""


@cache
def facts(op: OpOverload) -> Facts:
    """Returns the properties of an op that do not depend on the arguments of a call."""
    schema = op._schema
    name = schema.name.removeprefix("aten::")
    viewed = name.removesuffix("_copy") if torch.Tag.view_copy in op.tags else name
    order = None if str(op) in _NO_MOVES else _ORDERS.get(viewed)
    writes = tuple(one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)
    return Facts(
        draws=torch.Tag.nondeterministic_seeded in op.tags,
        writes=writes,
        statistics=_STATISTICS.get(name, ""),
        shares=_shares(op),
        functional=_functional(op) if writes else None,
        commutative=str(op) in _COMMUTATIVE,
        elementwise=torch.Tag.pointwise in op.tags or order == "same" or name in _ELEMENTWISE,
        moved=schema.arguments[0].name if order else "",
        order=order or "other",
        converts=name in _CONVERTS,
        positions=tuple(one.name for one in schema.arguments if one.name in _POSITIONS and "Tensor" in str(one.type)),
        metadata_only=name in _METADATA_ONLY or str(op) == "aten.fill.Scalar",
    )


def _shares(op: OpOverload) -> tuple[str, ...]:
    """Returns the names of the arguments that a result may alias according to the schema."""
    schema = op._schema
    if schema.name.removeprefix("aten::") in _UNSAFE:
        return ("self",)
    named = {alias for result in schema.returns if result.alias_info for alias in result.alias_info.before_set}
    return tuple(
        argument.name
        for argument in schema.arguments
        # `*` means that the views are in a list, as for `unbind`.
        if (shared := argument.alias_info) is not None and (shared.before_set & named or "*" in shared.after_set)
    )


def _functional(op: OpOverload) -> OpOverload | None:
    """Returns the functional overload with the same arguments as an in-place op, or None if none exists."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(torch.ops.aten, name[:-1], None) if namespace == "aten" and name.endswith("_") else None
    for overload in packet.overloads() if packet is not None else ():
        other: OpOverload = getattr(packet, overload)
        if not other._schema.is_mutable and _arguments(other) == _arguments(op):
            return other
    return None


def _arguments(op: OpOverload) -> list[tuple[str, object, bool]]:
    return [(str(one.type), one.default_value, one.kwarg_only) for one in op._schema.arguments]
