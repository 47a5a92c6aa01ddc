"""Computes the fp64 reference: runs a program with all floating-point values widened to float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from fuseconv.graph.nodes import draws, written
from fuseconv.graph.runner import Runner

if TYPE_CHECKING:
    from fuseconv.program.captured import Program

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def run_in_float64(program: Program, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Runs a program in float64 and returns its outputs.

    All floating-point tensors and all dtype arguments are widened to float64, and complex ones to complex128. A weight
    is widened only while an op uses it, so that only the activations need additional memory.

    Args:
        program: the original program.
        inputs: one tensor per contract input, in the dtypes of the contract.

    Returns:
        The leaves of the output. Floating-point outputs are float64, complex outputs complex128.
    """
    module = program.exported.module(check_guards=False)
    with torch.no_grad():
        return tuple(interpret_in_float64(module, inputs))


def interpret_in_float64(
    module: torch.nn.Module,
    operands: Sequence[Any],
    graph: Graph | None = None,
    shaken: torch.Generator | None = None,
) -> list[Any]:
    """Runs a graph of ATen ops in float64 and returns its outputs. Gradients flow if they are enabled.

    Args:
        module: the module that contains the parameters, buffers and subgraphs of the graph.
        operands: the values of the placeholders, in order.
        graph: the graph. None for the module's graph.
        shaken: a random generator, or None. If given, every floating-point value in the graph is multiplied by 1 + eps
            or 1 - eps, chosen at random, where eps is the machine epsilon of the value's dtype in the program. The
            resulting change of the output shows how well-conditioned the output is.

    Returns:
        The leaves of the output. Floating-point tensors are float64.
    """
    interpreter = _Float64(module, graph=graph) if shaken is None else _Shaken(module, graph, shaken)
    with _default_dtype(torch.float64):
        return [_widen(output) for output in pytree.tree_leaves(interpreter.run(*operands))]


class _Float64(Runner):
    """An interpreter that widens the operands and the dtype arguments of every op before it calls the op."""

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        if not draws(n) or any(written(n)):  # an in-place op must not get a copy of its operand
            return self._widened(n)
        # A kernel's random numbers depend on its dtype, so the op runs in the original dtype to get the same numbers.
        args, kwargs = map_arg((n.args, dict(n.kwargs)), lambda operand: _as_captured(self.env[operand], operand))
        return _widen(n.target(*args, **kwargs))  # type: ignore[operator]  # an OpOverload

    def _widened(self, node: Node) -> Any:
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # the op asserts the dtypes of the program, which differ from the widened dtypes

        def wide(leaf: Any) -> Any:
            value = self.env[leaf] if isinstance(leaf, Node) else leaf
            return pytree.tree_map(_widen, value) if isinstance(value, list | tuple) else _widen(value)

        given = node.args
        if node.target is torch.ops.higher_order.wrap_with_autocast:
            device, _, _, *others = given
            given = (device, None, False, *others)  # the region would cast its operands back
        args: Any = map_aggregate(given, wide)
        kwargs: Any = map_aggregate(node.kwargs, wide)
        target: Any = node.target
        return _NARROW_ONLY.get(target, target)(*args, **kwargs)


class _Shaken(_Float64):
    """An interpreter that perturbs every floating-point value by a relative error of plus or minus eps.

    eps is the machine epsilon of the dtype that the value has in the program.
    """

    def __init__(self, module: torch.nn.Module, graph: Graph | None, generator: torch.Generator) -> None:
        super().__init__(module, graph=graph)
        self._generator = generator

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        dtype = _dtype_of(n) or result.dtype
        signs = torch.randint(0, 2, result.shape, generator=self._generator).to(result.device) * 2 - 1
        return result.double() * (1 + signs * torch.finfo(dtype).eps)


def _dtype_of(node: Node) -> torch.dtype | None:
    """Returns the floating-point dtype of a node's value in the program. None for other values, or if unknown."""
    captured = node.meta.get("val")
    return captured.dtype if isinstance(captured, torch.Tensor) and captured.is_floating_point() else None


def _as_captured(value: Any, node: Node) -> Any:
    """Returns a tensor converted to the dtype that the node has in the program. Returns other values unchanged."""
    captured = node.meta.get("val")
    return value.to(captured.dtype) if isinstance(value, torch.Tensor) and captured is not None else value


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Computes `torch._grouped_mm` with ordinary matrix products, one per group.

    `offs` contains the end index of each group: among the rows of `a`, among the columns of `b`, or along the summed
    axis if both are matrices. Without `offs`, the result is the batched product of `a` and `b`.
    """
    ends = [] if offs is None else [0, *offs.tolist()]
    groups = [slice(first, last) for first, last in pairwise(ends)]
    if offs is None:
        product = a @ b
    elif a.dim() == 2 and b.dim() == 3:
        rest = a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])
        product = torch.cat([*(a[rows] @ one for rows, one in zip(groups, b, strict=True)), rest])
    elif a.dim() == 3:
        product = torch.cat([one @ b[:, columns] for one, columns in zip(a, groups, strict=True)], 1)
    else:
        product = torch.stack([a[:, inner] @ b[inner] for inner in groups])
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


_NARROW_ONLY: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten._grouped_mm.default: _grouped_mm,
    # Attention in float64 may return other strides than the kernel for 16 bits, of which the program takes a view.
    torch.ops.aten.view.default: torch.reshape,
}
"""Maps each op that float64 values may not support to a function that computes the same result."""


def _widen(value: Any) -> Any:
    """Returns a floating-point tensor, a dtype or a subgraph widened to float64. Returns other values unchanged."""
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
        return value.to(_WIDE[value.dtype])
    if isinstance(value, GraphModule):  # the subgraph of a higher-order op, such as a no_grad region or a branch
        return _Float64(value).run
    return value


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype within the block. Factory functions without a dtype argument use this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
