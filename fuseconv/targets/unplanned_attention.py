"""Replaces attention with dynamic sizes on CUDA with kernels that require no execution plan.

For f16 and bf16, PyTorch prefers cuDNN's attention. cuDNN builds an execution plan for every new size, which takes many
times as long as a call. If sizes are dynamic, this module therefore calls a specific kernel: Flash Attention or, with a
mask, the memory-efficient kernel. Both kernels accept new sizes without preparation; cuDNN's kernel is faster once it
has a plan. With static sizes there is only one plan, so nothing is changed.

Flash Attention requires heads of one width, and both kernels require a multiple of 8. Other heads are padded with
zeros, which change no score, and the result is cut. Flash Attention accepts fewer heads of keys and values than of
queries (grouped-query attention). For the memory-efficient kernel, these heads are repeated.

Source: aten/src/ATen/native/transformers/attention.cpp of torch 2.13, which selects a kernel and pads masks and heads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from fuseconv.graph.all_sizes import GuardError, run_for_all_sizes
from fuseconv.graph.nodes import arguments
from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_DTYPES = (torch.float16, torch.bfloat16)

ALIGNMENT = 8
"""The number of elements of which a mask's strides and a head's width must be multiples: 16 bytes in f16 and bf16."""

WIDEST = 256
"""The largest head width of Flash Attention."""


def without_plans(program: Program) -> Program:
    """Returns a program in which each attention with dynamic sizes calls a specific kernel.

    The given program is not changed, and is returned if it needs no change. For attention that neither kernel supports,
    PyTorch still chooses the kernel.
    """
    if program.contract.device != "cuda" or not program.contract.dims():
        return program
    graph = named(program.exported.graph)
    return program if graph is None else replace(program, exported=with_graph(program.exported, graph))


def named(graph: Graph) -> Graph | None:
    """Returns a copy of a graph that calls the kernels directly, or None if there is no attention to change."""
    if not any(_takes(node) for node in graph.nodes):
        return None
    naming = _Naming(copied(graph))
    for node in list(naming.graph.nodes):
        if _takes(node):
            naming.name(node)
    return naming.graph


def _takes(node: Node) -> bool:
    """Returns whether a node is attention with dynamic sizes that one of the two kernels can compute."""
    if node.target is not _ATTENTION:
        return False
    given = arguments(node)
    q, k, v = (given[name].meta["val"] for name in ("query", "key", "value"))
    # The kernels do not broadcast: the batch is the same in all three, and key heads divide the query heads.
    return bool(
        any(isinstance(size, torch.SymInt) for x in (q, k) for size in x.shape)
        and q.dim() == k.dim() == v.dim() == 4
        and q.dtype in _DTYPES
        and same_sizes([q.shape[0], q.shape[3]], [k.shape[0], k.shape[3]])
        and same_sizes(k.shape[:3], v.shape[:3])
        and (same_sizes([q.shape[1]], [k.shape[1]]) or (given["enable_gqa"] and _group(q, k) > 0))
        and all(isinstance(width, int) and 0 < width <= WIDEST for width in (q.shape[3], v.shape[3]))
        and given["dropout_p"] == 0
        and _supports(given, q, k)
    )


def _group(q: torch.Tensor, k: torch.Tensor) -> int:
    """Returns how many heads of queries share a head of keys, or 0 if the numbers are dynamic or do not divide."""
    heads, shared = q.shape[1], k.shape[1]
    known = isinstance(heads, int) and isinstance(shared, int) and shared > 0
    return heads // shared if known and heads % shared == 0 else 0


def _supports(given: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> bool:
    """Returns whether one of the two kernels supports the mask of an attention node, or attention without a mask."""
    if given["attn_mask"] is None:
        return not given["is_causal"] or same_sizes([q.shape[2]], [k.shape[2]])
    mask = given["attn_mask"].meta["val"]
    scores = [*q.shape[:3], k.shape[2]][-mask.dim() :]
    fits = 0 < mask.dim() <= 4 and all(
        same_sizes([size], [wanted]) or (size == 1 and isinstance(size, int))
        for size, wanted in zip(mask.shape[:-1], scores[:-1], strict=True)
    )
    is_wide = fits and same_sizes([mask.shape[-1]], [k.shape[2]])
    return is_wide and mask.dtype in (torch.bool, q.dtype) and not given["is_causal"]


@dataclass
class _Naming:
    """Replaces attention nodes in a graph, and pads a mask that several layers share only once."""

    graph: Graph
    _masks: dict[tuple[Node, torch.dtype], tuple[Node, Node]] = field(default_factory=dict)

    def name(self, node: Node) -> None:
        given = arguments(node)
        ops = torch.ops.aten
        with self.graph.inserting_before(node):
            before = node.prev
            try:
                operands = [given[name] for name in ("query", "key", "value")]
                own, _, width = (operand.meta["val"].shape[-1] for operand in operands)
                common = math.ceil(max(own, width) / ALIGNMENT) * ALIGNMENT
                scale = own**-0.5 if given["scale"] is None and own < common else given["scale"]
                q, k, v = (self._dense(self._widened(operand, common)) for operand in operands)
                if given["attn_mask"] is None:
                    kernel = ops._scaled_dot_product_flash_attention.default
                    results = self._call(kernel, q, k, v, 0.0, given["is_causal"], False, scale=scale)
                else:
                    k, v = (self._repeated(operand, q) for operand in (k, v))
                    bias = self._bias(given["attn_mask"], q)
                    kernel = ops._scaled_dot_product_efficient_attention.default
                    results = self._call(kernel, q, k, v, bias, False, 0.0, False, scale=scale)
                result = self._call(operator.getitem, results, 0)
                _forget_unused(results)
                if width < common:
                    result = self._call(ops.slice.Tensor, result, 3, 0, width)
            except GuardError:
                self._masks.pop((given["attn_mask"], given["query"].meta["val"].dtype), None)
                while node.prev is not before:
                    self.graph.erase_node(node.prev)
                return
        for key in ("stack_trace", "nn_module_stack", "custom"):
            if key in node.meta:
                result.meta[key] = node.meta[key]
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _widened(self, operand: Node, width: int) -> Node:
        """Returns an operand whose heads have this width, with zeros behind if they are narrower."""
        missing = width - operand.meta["val"].shape[-1]
        return self._call(torch.ops.aten.constant_pad_nd.default, operand, [0, missing]) if missing else operand

    def _repeated(self, operand: Node, q: Node) -> Node:
        """Returns keys or values with as many heads as the queries have."""
        group = _group(q.meta["val"], operand.meta["val"])
        return self._call(torch.ops.aten.repeat_interleave.self_int, operand, group, 1) if group > 1 else operand

    def _dense(self, operand: Node) -> Node:
        """Returns an operand in which the elements of a head are adjacent in memory, as both kernels require."""
        if same_sizes([operand.meta["val"].stride(-1)], [1]):
            return operand
        dense: Node = self._call(torch.ops.aten.contiguous.default, operand)
        return dense

    def _bias(self, mask: Node, q: Node) -> Node:
        """Returns the mask as an additive bias [B, H, L, S], whose rows begin at multiples of 16 bytes."""
        key = (mask, q.meta["val"].dtype)
        if key not in self._masks:
            self._masks[key] = self._padded(*key)
        padded, keys = self._masks[key]
        sizes = [self._size(q, axis) for axis in range(3)]
        bias: Node = self._call(torch.ops.aten.expand.default, padded, [*sizes, keys])
        return bias

    def _padded(self, mask: Node, dtype: torch.dtype) -> tuple[Node, Node]:
        ops, last = torch.ops.aten, mask.meta["val"].dim() - 1
        bias = mask
        if mask.meta["val"].dtype == torch.bool:
            zeros = self._call(ops.zeros_like.default, mask, dtype=dtype)
            bias = self._call(ops.masked_fill.Scalar, zeros, self._call(ops.logical_not.default, mask), -math.inf)
        keys = self._size(mask, last)
        # This is -keys modulo the alignment, in a form that is not negative for torch's solver and in TorchScript.
        missing = self._call(operator.mod, self._call(operator.mul, keys, ALIGNMENT - 1), ALIGNMENT)
        whole = self._call(operator.add, keys, missing)
        sizes = [self._size(mask, axis) for axis in range(last)]
        room = self._call(ops.new_zeros.default, bias, [*sizes, whole])
        padded = self._call(ops.slice_scatter.default, room, bias, last, 0, keys)
        # The fake value is made separately: torch would ask for a bound on the storage that its solver cannot prove.
        slice_of = self.graph.call_function(ops.slice.Tensor, (padded, last, 0, keys))
        like = padded.meta["val"]
        make = partial(like.new_empty_strided, mask.meta["val"].shape, like.stride())
        slice_of.meta["val"] = run_for_all_sizes(like.fake_mode, make)
        return slice_of, keys

    def _size(self, node: Node, axis: int) -> Any:
        size = node.meta["val"].shape[axis]
        return size if isinstance(size, int) else self._call(torch.ops.aten.sym_size.int, node, axis)

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call to the graph, computes its fake value, and returns the new node."""

        def value(argument: Any) -> Any:
            if isinstance(argument, list):
                return [value(one) for one in argument]
            return argument.meta["val"] if isinstance(argument, Node) else argument

        values = [value(one) for one in args]
        named_values = {name: value(one) for name, one in kwargs.items()}
        mode = next((one.fake_mode for one in values if isinstance(one, FakeTensor)), None)
        result = run_for_all_sizes(mode, partial(target, *values, **named_values))
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = result
        return node


def _forget_unused(results: Node) -> None:
    """Replaces the fake values of results that nothing uses, because torch.export cannot save all of them.

    The random state of Flash Attention is uint64, which torch 2.11 cannot save; and no torch saves a dynamic size among
    several results.
    """
    first, *others = results.meta["val"]
    results.meta["val"] = (first, *(0 if isinstance(one, int | torch.SymInt) else None for one in others))
