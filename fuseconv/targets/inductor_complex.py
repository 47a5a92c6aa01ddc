"""Writes arithmetic of complex numbers with ops that AOTInductor packages can call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fuseconv.graph.nodes import arguments

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

_aten = torch.ops.aten

_REVERSED = (_aten.rsub.Scalar, _aten.rsub.Tensor)
_SUMS = {
    _aten.sub.Tensor: _aten.add.Tensor,
    _aten.sub_.Tensor: _aten.add_.Tensor,
    **dict.fromkeys(_REVERSED, _aten.add.Tensor),
}
"""Maps each op that computes a difference to the one that computes a sum."""


def respell_complex_arithmetic(exported: ExportedProgram) -> None:
    """Replaces numbers in complex arithmetic by tensors, and differences by sums, in place.

    Inductor generates no code for complex numbers, so a package calls PyTorch's ops. Inductor fails if an argument of
    such a call is a number and the schema declares a tensor, as for `rfft(x) / n`: "got <class 'int'>"
    (torch 2.11 and 2.13, `CppWrapperCpu.generate_extern_kernel_args_decl_if_needed`). A package fails to call `sub`:
    "Mismatch between ints consumed and num_ints" (torch 2.13).
    """
    for node in list(exported.graph.nodes):
        value = node.meta.get("val")
        if isinstance(node.target, torch._ops.OpOverload) and isinstance(value, torch.Tensor) and value.is_complex():
            with exported.graph.inserting_before(node):
                _replace_numbers(exported.graph, node, value)
                _replace_difference(exported.graph, node, value)
    exported.graph_module.recompile()


def _replace_numbers(graph: Graph, node: Any, value: torch.Tensor) -> None:
    given = arguments(node)
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.type.kind() == "TensorType" and _is_number(given[argument.name]):
            node.update_arg(at, _tensor(graph, given[argument.name], value))


def _replace_difference(graph: Graph, node: Any, value: torch.Tensor) -> None:
    if node.target not in _SUMS or arguments(node)["alpha"] != 1:
        return
    first, second = node.args[:2]
    if node.target in _REVERSED:
        first, second = second, first
    terms = (first, graph.call_function(_aten.neg.default, (second,)))
    node.args = tuple(_tensor(graph, one, value) if _is_number(one) else one for one in terms)
    node.target, node.kwargs = _SUMS[node.target], {}


def _is_number(given: Any) -> bool:
    value = getattr(given, "meta", {}).get("val", given)
    return isinstance(value, int | float | complex | torch.SymInt | torch.SymFloat)


def _tensor(graph: Graph, number: Any, like: torch.Tensor) -> Node:
    """Returns a new node with the number as a tensor without dims, on the device of `like`."""
    if isinstance(number, complex):
        parts = tuple(_tensor(graph, part, like) for part in (number.real, number.imag))
        return graph.call_function(_aten.complex.default, parts)
    kind: dict[str, Any] = {"dtype": like.dtype.to_real(), "device": like.device}
    return graph.call_function(_aten.scalar_tensor.default, (number,), kind)
